"""The chunks of a streamed text completion."""

from __future__ import annotations

from typing import Any

from tsd.api.job import Job
from tsd.api.logprobs import CompletionLogprobsBuilder
from tsd.api.output import Delta, Ending
from tsd.api.sequence import Sequence
from tsd.api.sse import DONE, encode
from tsd.api.streaming import EventStream
from tsd.api.text.tokenizer import Tokenizer
from tsd.api.wire.chat_stream import usage_of
from tsd.api.wire.completions import CompletionLogprobs


class CompletionStream:
    """A job's sink. `echoes`: each prompt's text, sent before its choices' first text; None without echo."""

    def __init__(
        self,
        events: EventStream,
        job: Job,
        model: str,
        tokenizer: Tokenizer,
        *,
        include_usage: bool = False,
        continuous_usage: bool = False,
        token_ids: bool = False,
        logprobs: bool = False,
        echoes: list[str] | None = None,
        silent: bool = False,
    ) -> None:
        self._events = events
        self._job = job
        self._tokenizer = tokenizer
        self._include_usage = include_usage
        self._continuous = continuous_usage
        self._token_ids = token_ids
        self._logprobs = logprobs
        self._echoes = echoes
        self._silent = silent
        self._columns: dict[int, CompletionLogprobsBuilder] = {}
        self._started: set[int] = set()
        self._simple = not (continuous_usage or token_ids or logprobs or silent) and echoes is None
        self._head = b'data: {"id":%b,"object":"text_completion","created":%d,"model":%b,"choices":[' % (
            encode(job.public_id),
            job.created,
            encode(model),
        )
        self._close = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"
        self._tail = b',"logprobs":null,"finish_reason":null}' + self._close
        self._heads: dict[int, bytes] = {}

    def delta(self, sequence: Sequence, delta: Delta) -> None:
        if self._simple:
            if delta.content:
                head = self._heads.get(sequence.index)
                if head is None:
                    head = self._heads[sequence.index] = self._head + b'{"index":%d,"text":' % sequence.index
                self._events.send(head + encode(delta.content) + self._tail)
            return
        text, tokens, logprobs = delta.content, delta.tokens, delta.logprobs
        if self._silent:
            text, tokens, logprobs = "", [], None
        choice: dict[str, Any] = {"index": sequence.index, "text": text}
        first = sequence.index not in self._started
        self._started.add(sequence.index)
        if first and self._echoes is not None:
            choice["text"] = self._echoes[sequence.prompt_index] + text
        if self._logprobs:
            columns = self._columns.setdefault(sequence.index, CompletionLogprobsBuilder(self._tokenizer))
            if first and self._echoes is not None and sequence.prompt_logprobs is not None:
                columns.add(sequence.prompt, sequence.prompt_logprobs)
            if logprobs is not None:
                columns.add(tokens, logprobs)
            choice["logprobs"] = CompletionLogprobs(*columns.take())
        if self._token_ids:
            choice["token_ids"] = tokens
            if first:
                choice["prompt_token_ids"] = sequence.prompt.tolist()
        if choice["text"] or tokens or first:
            self._events.send(self._chunk(choice))

    def ended(self, sequence: Sequence, ending: Ending) -> None:
        reason = "length" if self._silent else ending.reason
        self._events.send(
            self._chunk({"index": sequence.index, "text": "", "finish_reason": reason, "stop_reason": ending.stop})
        )

    def last(self) -> bytes:
        if not self._include_usage:
            return DONE
        return self._head + b'],"usage":' + encode(usage_of(self._job)) + b"}\n\n" + DONE

    def _chunk(self, choice: dict[str, Any]) -> bytes:
        choice.setdefault("logprobs", None)
        choice.setdefault("finish_reason", None)
        close = self._close
        if self._continuous:
            close = b'],"usage":' + encode(usage_of(self._job)) + b"}\n\n"
        return self._head + encode(choice) + close
