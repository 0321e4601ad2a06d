"""The events of a streamed Anthropic message: one content block at a time, each opened, filled and closed."""

from __future__ import annotations

from typing import Any

from tsd.api.errors import ApiError
from tsd.api.job import Job
from tsd.api.output import CallDelta, Delta, Ending
from tsd.api.sequence import Sequence
from tsd.api.sse import encode, named_event
from tsd.api.streaming import EventStream
from tsd.api.wire.messages import MessageAnswer, MessagesUsage, ThinkingTokens, messages_error, text_block, tool_block

STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "abort": "end_turn"}


def stop_of(ending: Ending) -> tuple[str, str | None]:
    """(stop_reason, stop_sequence)."""
    if ending.reason == "stop" and isinstance(ending.stop, str):
        return "stop_sequence", ending.stop
    return STOP_REASONS.get(ending.reason, "end_turn"), None


def messages_usage(job: Job) -> MessagesUsage:
    cached = job.cached_tokens
    details = ThinkingTokens(job.reasoning_tokens)
    return MessagesUsage(job.prompt_tokens - cached, job.completion_tokens, cached, output_tokens_details=details)


class MessagesStream:
    """A job's sink. `first` gives the opening event, once the engine has taken the request."""

    def __init__(self, events: EventStream, job: Job, model: str) -> None:
        self._events = events
        self._job = job
        self._model = model
        self._index = -1
        self._open = ""
        """Type of the open block."""
        self._ending = Ending("stop")
        self._text_head = b""

    def first(self) -> bytes:
        message = MessageAnswer(self._job.public_id, self._model, [], None, None, messages_usage(self._job))
        return named_event("message_start", {"type": "message_start", "message": message}) + named_event(
            "ping", {"type": "ping"}
        )

    def delta(self, sequence: Sequence, delta: Delta) -> None:
        if delta.reasoning:
            self._enter("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            self._add({"type": "thinking_delta", "thinking": delta.reasoning})
        if delta.content:
            if self._open != "text":
                self._enter("text", text_block(""))
                self._text_head = (
                    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
                    b'"delta":{"type":"text_delta","text":' % self._index
                )
            self._events.send(self._text_head + encode(delta.content) + b"}}\n\n")
        for call in delta.calls:
            self._call(call)

    def ended(self, sequence: Sequence, ending: Ending) -> None:
        self._ending = ending

    def last(self) -> bytes:
        self._leave()
        reason, sequence = stop_of(self._ending)
        usage = messages_usage(self._job)
        delta = {"stop_reason": reason, "stop_sequence": sequence, "stop_details": None, "container": None}
        return named_event("message_delta", {"type": "message_delta", "delta": delta, "usage": usage}) + named_event(
            "message_stop", {"type": "message_stop"}
        )

    def _call(self, call: CallDelta) -> None:
        if call.id:
            self._enter("tool_use", tool_block(call.id, call.name, {}), again=True)
        if call.arguments:
            self._add({"type": "input_json_delta", "partial_json": call.arguments})

    def _enter(self, kind: str, block: dict[str, Any], again: bool = False) -> None:
        if self._open == kind and not again:
            return
        self._leave()
        self._index += 1
        self._open = kind
        start = {"type": "content_block_start", "index": self._index, "content_block": block}
        self._events.send(named_event("content_block_start", start))

    def _leave(self) -> None:
        if not self._open:
            return
        if self._open == "thinking":
            self._add({"type": "signature_delta", "signature": ""})
        self._open = ""
        stop = {"type": "content_block_stop", "index": self._index}
        self._events.send(named_event("content_block_stop", stop))

    def _add(self, delta: dict[str, Any]) -> None:
        event = {"type": "content_block_delta", "index": self._index, "delta": delta}
        self._events.send(named_event("content_block_delta", event))


def messages_failure(error: ApiError) -> bytes:
    return named_event("error", messages_error(error))
