"""Builds a response's output items as they grow and, for a stream, tells each change in the dialect's full order.

created, in_progress (in the background created, queued, and in_progress once it runs), then for each item:
output_item.added, [content_part.added,] its deltas, its done, [content_part.done,] output_item.done; at the end
completed, incomplete or failed.
"""

from __future__ import annotations

import secrets
from typing import Any

from tsd.api.background import EventLog
from tsd.api.errors import ApiError
from tsd.api.job import Job
from tsd.api.logprobs import chat_logprobs
from tsd.api.output import CallDelta, Delta, Ending
from tsd.api.sequence import Sequence
from tsd.api.sse import encode, named_event
from tsd.api.streaming import EventStream
from tsd.api.text.tokenizer import Tokenizer
from tsd.api.wire.chat import TokenLogprob
from tsd.api.wire.responses import (
    IncompleteDetails,
    InputTokensDetails,
    OutputTokensDetails,
    Response,
    ResponseError,
    ResponseUsage,
)

_ERROR_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}
"""The dialect knows few."""


def response_usage(job: Job) -> ResponseUsage:
    prompt, output = job.prompt_tokens, job.completion_tokens
    return ResponseUsage(
        prompt,
        InputTokensDetails(job.cached_tokens),
        output,
        OutputTokensDetails(job.reasoning_tokens),
        prompt + output,
    )


class ResponseBuilder:
    """A job's sink. Without `events` it only builds."""

    def __init__(
        self,
        job: Job,
        response: Response,
        events: EventStream | EventLog | None,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        """`tokenizer` names the tokens where log-probabilities were asked for."""
        self.response = response
        self._job = job
        self._events = events
        self._number = 2
        """0 and 1 are the opening's, which are sent before what the buffer holds."""
        self._item: dict[str, Any] | None = None
        self._text: list[str] = []
        self._tokenizer = tokenizer
        self._waiting: list[TokenLogprob] = []
        """Of tokens whose text is held back."""
        self._logprobs: list[TokenLogprob] = []
        """Of the open message."""
        self._opening = self._created()

    def first(self) -> bytes:
        """created and in_progress (or queued), as the response was before anything came."""
        return b"".join(self._opening)

    def _created(self) -> list[bytes]:
        events = [
            {"type": f"response.{kind}", "response": self.response, "sequence_number": number}
            for number, kind in enumerate(("created", self.response.status))
        ]
        return [named_event(str(event["type"]), event) for event in events]

    def enqueue(self) -> None:
        """In the background: the opening goes out now."""
        if self._events is not None:
            for event in self._opening:
                self._events.send(event)

    def begin(self) -> None:
        """The engine has taken it."""
        if self.response.status == "queued":
            self.response.status = "in_progress"
            self._send("response.in_progress", response=self.response)

    def delta(self, sequence: Sequence, delta: Delta) -> None:
        self.begin()
        if self._tokenizer is not None and delta.logprobs is not None:
            self._waiting += chat_logprobs(self._tokenizer, delta.tokens, delta.logprobs)
        if delta.reasoning:
            self._waiting = []
            self._enter("reasoning")
            self._grow("response.reasoning_text.delta", delta.reasoning, content_index=0)
        if delta.content:
            opens = self._item is None or self._item["type"] != "message"
            self._enter("message")
            told, self._waiting = self._waiting, []
            if opens:
                told = _last_of(told, len(delta.content.encode()))
            self._logprobs += told
            self._grow("response.output_text.delta", delta.content, content_index=0, logprobs=told)
        for call in delta.calls:
            self._call(call)

    def ended(self, sequence: Sequence, ending: Ending) -> None:
        cut = ending.reason == "length"
        self._leave("incomplete" if cut or ending.reason == "abort" else "completed")
        response = self.response
        response.status = "incomplete" if cut else "cancelled" if ending.reason == "abort" else "completed"
        if cut:
            response.incomplete_details = IncompleteDetails("max_output_tokens")

    def last(self) -> bytes:
        """The terminal event."""
        self.response.usage = response_usage(self._job)
        kind = "completed" if self.response.status == "completed" else "incomplete"
        return self._event(f"response.{kind}", response=self.response)

    def failed(self, error: ApiError) -> bytes:
        self.response.status = "failed"
        code = _ERROR_CODES.get(error.status, "server_error")
        if error.code == "context_length_exceeded":  # by which agents know that they must compact
            code = error.code
        self.response.error = ResponseError(code, error.message)
        return self._event("response.failed", response=self.response)

    def _call(self, call: CallDelta) -> None:
        self._waiting = []
        if call.id:
            self._leave("completed")
            self._begin({"type": "function_call", "call_id": call.id, "name": call.name, "arguments": ""}, "fc_")
        if call.arguments:
            self._grow("response.function_call_arguments.delta", call.arguments)

    def _enter(self, kind: str) -> None:
        if self._item is not None and self._item["type"] == kind:
            return
        self._leave("completed")
        if kind == "reasoning":
            self._begin({"type": kind, "summary": [], "content": []}, "rs_")
            self._part("response.content_part.added", {"type": "reasoning_text", "text": ""})
        else:
            self._begin({"type": kind, "role": "assistant", "content": []}, "msg_")
            self._part("response.content_part.added", _output_text("", []))

    def _begin(self, item: dict[str, Any], prefix: str) -> None:
        self._item = {"id": prefix + secrets.token_hex(16), "status": "in_progress", **item}
        self._text = []
        self.response.output.append(self._item)
        self._send("response.output_item.added", output_index=self._index, item=self._item)

    def _grow(self, kind: str, text: str, **fields: Any) -> None:
        assert self._item is not None
        self._text.append(text)
        self._send(kind, item_id=self._item["id"], output_index=self._index, delta=text, **fields)

    def _leave(self, status: str) -> None:
        item = self._item
        if item is None:
            return
        self._item, text = None, "".join(self._text)
        item["status"] = status
        where = {"item_id": item["id"], "output_index": self._index}
        if item["type"] == "function_call":
            item["arguments"] = text
            self._send("response.function_call_arguments.done", **where, name=item["name"], arguments=text)
        elif item["type"] == "reasoning":
            part: dict[str, Any] = {"type": "reasoning_text", "text": text}
            item["content"] = [part]
            self._send("response.reasoning_text.done", **where, content_index=0, text=text)
            self._send("response.content_part.done", **where, content_index=0, part=part)
        else:
            logprobs, self._logprobs = self._logprobs, []
            part = _output_text(text, logprobs)
            item["content"] = [part]
            self._send("response.output_text.done", **where, content_index=0, text=text, logprobs=logprobs)
            self._send("response.content_part.done", **where, content_index=0, part=part)
        self._send("response.output_item.done", output_index=self._index, item=item)

    def _part(self, kind: str, part: dict[str, Any]) -> None:
        assert self._item is not None
        self._send(kind, item_id=self._item["id"], output_index=self._index, content_index=0, part=part)

    @property
    def _index(self) -> int:
        return len(self.response.output) - 1

    def _send(self, kind: str, **fields: Any) -> None:
        if self._events is not None:
            self._events.send(self._event(kind, **fields))

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        data = encode({"type": kind, "sequence_number": number, **fields})
        return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"


def _last_of(tokens: list[TokenLogprob], size: int) -> list[TokenLogprob]:
    """Those that `size` bytes of text came from; before them a tag or white space was dropped."""
    at = len(tokens)
    while at > 0 and size > 0:
        at -= 1
        size -= len(tokens[at].bytes)
    return tokens[at:]


def _output_text(text: str, logprobs: list[TokenLogprob]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
