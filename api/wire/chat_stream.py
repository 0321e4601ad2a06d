"""The chunks of a streamed chat completion. The common chunk (text only) is two constant halves around the text."""

from __future__ import annotations

from typing import Any

from tsd.api.job import Job
from tsd.api.logprobs import chat_logprobs
from tsd.api.output import Delta, Ending
from tsd.api.sequence import Sequence
from tsd.api.sse import DONE, encode
from tsd.api.streaming import EventStream
from tsd.api.text.tokenizer import Tokenizer
from tsd.api.wire.sampling import Usage


def usage_of(job: Job) -> Usage:
    return Usage.of(job.prompt_tokens, job.completion_tokens, job.cached_tokens, job.reasoning_tokens)


class ChatStream:
    """A job's sink. Both names of the reasoning field are written; each answer begins with `opening`."""

    def __init__(
        self,
        events: EventStream,
        job: Job,
        model: str,
        tokenizer: Tokenizer,
        choices: int,
        *,
        include_usage: bool = False,
        continuous_usage: bool = False,
        token_ids: bool = False,
        logprobs: bool = False,
        include_reasoning: bool = True,
        opening: str = "",
    ) -> None:
        self._events = events
        self._job = job
        self._tokenizer = tokenizer
        self._include_usage = include_usage
        self._continuous = continuous_usage
        self._token_ids = token_ids
        self._logprobs = logprobs
        self._include_reasoning = include_reasoning
        self._simple = not (continuous_usage or token_ids or logprobs)
        self._head = b'data: {"id":%b,"object":"chat.completion.chunk","created":%d,"model":%b,"choices":[' % (
            encode(job.public_id),
            job.created,
            encode(model),
        )
        self._close = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"
        self._text_heads = [self._head + b'{"index":%d,"delta":{"content":' % index for index in range(choices)]
        self._text_tail = b'},"logprobs":null,"finish_reason":null}' + self._close
        self._announced = [False] * choices
        for index in range(choices):
            self._events.send(self._chunk({"index": index, "delta": {"role": "assistant", "content": opening}}))

    def delta(self, sequence: Sequence, delta: Delta) -> None:
        if self._simple and not delta.reasoning and not delta.calls:
            if delta.content:
                self._events.send(self._text_heads[sequence.index] + encode(delta.content) + self._text_tail)
            return
        fields: dict[str, Any] = {}
        if delta.reasoning and self._include_reasoning:
            fields["reasoning"] = fields["reasoning_content"] = delta.reasoning
        if delta.content:
            fields["content"] = delta.content
        if delta.calls:
            fields["tool_calls"] = [_call(call) for call in delta.calls]
        if not fields and not (self._token_ids and delta.tokens) and not (self._logprobs and delta.logprobs):
            return
        choice: dict[str, Any] = {"index": sequence.index, "delta": fields}
        if self._logprobs and delta.logprobs:
            choice["logprobs"] = {
                "content": chat_logprobs(self._tokenizer, delta.tokens, delta.logprobs),
                "refusal": None,
            }
        if self._token_ids:
            choice["token_ids"] = delta.tokens
        self._events.send(self._chunk(choice, sequence))

    def ended(self, sequence: Sequence, ending: Ending) -> None:
        choice = {
            "index": sequence.index,
            "delta": {},
            "finish_reason": ending.reason,
            "stop_reason": ending.stop,
        }
        self._events.send(self._chunk(choice, sequence))

    def last(self) -> bytes:
        if not self._include_usage:
            return DONE
        return self._head + b'],"usage":' + encode(usage_of(self._job)) + b"}\n\n" + DONE

    def _chunk(self, choice: dict[str, Any], sequence: Sequence | None = None) -> bytes:
        choice.setdefault("logprobs", None)
        choice.setdefault("finish_reason", None)
        end = self._close
        if self._continuous:
            end = b'],"usage":' + encode(usage_of(self._job)) + b"}\n\n"
        if self._token_ids and sequence is not None and not self._announced[sequence.index]:
            self._announced[sequence.index] = True
            end = (
                b'],"prompt_token_ids":'
                + encode(sequence.prompt.tolist())
                + (b"," if end[1:2] == b"," else b"")
                + end[2 if end[1:2] == b"," else 1 :]
            )
        return self._head + encode(choice) + end


def _call(call: Any) -> dict[str, Any]:
    if not call.id:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    return {
        "index": call.index,
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
