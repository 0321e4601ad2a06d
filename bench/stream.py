"""One streamed answer, from bytes to a `RequestRecord`: which chunks carry output, when they came, how much they hold.

Owns the reading of OpenAI completion and chat chunks (text, content, reasoning, tool calls, token ids, usage on any
chunk, errors inside a stream). Knows nothing about sockets.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tsd.bench.record import RequestRecord
from tsd.bench.sse import SseReader


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    token_ids: list[int] | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_DECODER = msgspec.json.Decoder(_Chunk)


def error_text(body: bytes) -> str:
    """The message inside an OpenAI-style error body, or the start of whatever the server sent."""
    try:
        value: object = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return body[:300].decode("utf-8", "replace").strip()
    for key in ("error", "message", "detail"):
        if isinstance(value, dict) and key in value:
            value = value[key]
    return value if isinstance(value, str) else msgspec.json.encode(value)[:300].decode()


class StreamReader:
    """Collects one answer into `record`. `usage_with_output`: the server put usage on chunks before the last."""

    def __init__(self, record: RequestRecord, keep_text: bool, completions: bool) -> None:
        self.record = record
        self.token_ids: list[int] = []
        self.texts: list[str] = []
        self.done = False
        self.last_byte = 0.0
        self.usage_with_output = False
        self._sse = SseReader()
        self._keep_text = keep_text
        self._completions = completions
        self._counted = 0  # tokens accounted for by chunks so far
        self._uncounted = False  # some chunk's token count is unknown
        self._counts: list[int] = []
        self.failure = ""

    def feed(self, data: bytes, now: float) -> None:
        """A piece of the body that was received at `now`."""
        self.last_byte = now
        for payload in self._sse.feed(data):
            self._event(payload, now)

    def _event(self, payload: bytes, now: float) -> None:
        if payload == b"[DONE]":
            self.done = True
            return
        try:
            chunk = _DECODER.decode(payload)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            self.failure = self.failure or f"a chunk that is not an OpenAI chunk ({error}): {payload[:120]!r}"
            return
        if chunk.error is not None:
            self.failure = self.failure or f"error in the stream: {error_text(payload)}"
            return
        usage = chunk.usage
        total = usage.completion_tokens if usage is not None else None
        if usage is not None:
            self._usage(usage)
        if not chunk.choices:
            return
        choice = chunk.choices[0]
        self.usage_with_output |= total is not None and choice.finish_reason is None
        if choice.finish_reason is not None:
            self.record.finish_reason = choice.finish_reason
        new = self._new_tokens(choice, total)
        if new is None:
            return
        self.record.chunk_times.append(now - self.record.start)
        if new > 0:
            self._counts.append(new)
            self._counted += new
        else:
            self._uncounted = True

    def _new_tokens(self, choice: _Choice, total: int | None) -> int | None:
        """Tokens that this chunk carries: None for a chunk without output, 0 where the server does not say how many."""
        text = choice.text
        present = bool(text)
        delta = choice.delta
        if delta is not None:
            content = delta.content or delta.reasoning or delta.reasoning_content or delta.refusal
            present = bool(content or delta.tool_calls)
            text = delta.content
        if text and self._keep_text:
            self.texts.append(text)
        if choice.token_ids is not None:
            self.token_ids.extend(choice.token_ids)
            return len(choice.token_ids) or (None if not present else 0)
        if total is not None:
            return total - self._counted if total > self._counted else (0 if present and not self._counted else None)
        if present:
            return 0
        # a token that is no text yet (part of a character): completions servers send an empty chunk for it
        return 0 if self._completions and choice.finish_reason is None and text == "" else None

    def _usage(self, usage: _Usage) -> None:
        record = self.record
        if usage.prompt_tokens is not None:
            record.input_tokens = usage.prompt_tokens
        if usage.completion_tokens is not None:
            record.usage_output = usage.completion_tokens
        if usage.prompt_tokens_details is not None and usage.prompt_tokens_details.cached_tokens is not None:
            record.cached_tokens = usage.prompt_tokens_details.cached_tokens

    def finish(self) -> None:
        """The body is complete: settle the counts, and say so when the answer is not whole."""
        for payload in self._sse.close():
            self._event(payload, self.last_byte)
        record = self.record
        if self._keep_text:
            record.text = "".join(self.texts)
        if not self._uncounted:
            record.chunk_tokens = self._counts
        if self.failure:
            record.error = self.failure
        elif not self.done and record.finish_reason is None:
            record.error = "the stream ended without a finish reason"
        elif not record.chunk_times and record.requested_output > 0:
            record.error = "the answer holds no output"
