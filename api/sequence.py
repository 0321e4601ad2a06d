"""One request to one engine: its tokens become text, in the order detokenizer → reasoning → stops → tools.

Hot: `advance` runs once a step and sequence, in the loop that reads the engine's message. No task, no await.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from tsd.api.errors import ApiError, DeadlineExceeded, EngineFault, InvalidRequest, Overloaded, Unavailable
from tsd.api.output import Delta, Ending, Parser, ReasoningSplitter
from tsd.api.text.detokenizer import Detokenizer
from tsd.api.text.stops import StopMatcher
from tsd.engine.protocol import Finished, Started, Submit, TokenLogprobs

if TYPE_CHECKING:
    from tsd.api.engines import EngineClient
    from tsd.api.job import Job

_NO_TOKENS: list[int] = []


class Sequence:
    """Belongs to a job; `index` is its choice number.

    Times are `time.monotonic()`: a uvloop's own clock has a millisecond's grain.
    """

    __slots__ = (
        "arrived",
        "cached_tokens",
        "count",
        "detokenizer",
        "ending",
        "engine",
        "finished",
        "first_token",
        "fresh",
        "fresh_logprobs",
        "id",
        "index",
        "job",
        "last_token",
        "min_tokens",
        "parser",
        "parser_first",
        "plain",
        "prompt",
        "prompt_index",
        "prompt_logprobs",
        "reasoning_tokens",
        "splitter",
        "started",
        "stops",
        "submit",
    )

    def __init__(
        self,
        job: Job,
        index: int,
        prompt: array[int],
        submit: Submit,
        detokenizer: Detokenizer,
        *,
        prompt_index: int = 0,
        stops: StopMatcher | None = None,
        splitter: ReasoningSplitter | None = None,
        parser: Parser | None = None,
        parser_first: bool = False,
    ) -> None:
        """`parser_first`: the parser also separates reasoning, so that stop strings come after it."""
        self.job = job
        self.index = index
        self.prompt = prompt
        self.prompt_index = prompt_index
        self.submit = submit
        self.min_tokens = submit.min_tokens
        self.detokenizer = detokenizer
        self.stops = stops
        self.splitter = splitter
        self.parser = parser
        self.parser_first = parser_first
        self.plain = stops is None and splitter is None and parser is None
        self.engine: EngineClient | None = None
        self.id = -1
        self.count = 0
        self.cached_tokens = 0
        self.reasoning_tokens = 0
        self.arrived = 0.0
        self.started = 0.0
        self.first_token = 0.0
        self.last_token = 0.0
        self.fresh: list[int] | None = None
        self.fresh_logprobs: list[TokenLogprobs] | None = None
        self.prompt_logprobs: list[TokenLogprobs | None] | None = None
        self.ending: Ending | None = None
        self.finished: Finished | None = None

    def on_started(self, message: Started, now: float) -> None:
        self.started = now
        self.cached_tokens = message.cached_tokens
        self.job.on_started()

    def advance(self, finished: Finished | None, now: float) -> None:
        """Takes `fresh` tokens and, when the engine is done with it, the terminal event."""
        tokens = self.fresh or _NO_TOKENS
        logprobs = self.fresh_logprobs
        self.fresh = self.fresh_logprobs = None
        if tokens:
            self.job.metrics.on_tokens(self, len(tokens), now)
        if self.plain and finished is None:
            self.count += len(tokens)
            push = self.detokenizer.push
            text = push(tokens[0]) if len(tokens) == 1 else "".join(map(push, tokens))
            self.job.sink.delta(self, Delta(text, "", [], tokens, logprobs))
            return
        delta = Delta("", "", [], tokens, logprobs)
        skip_last = finished is not None and finished.stop_token >= 0 and tokens and tokens[-1] == finished.stop_token
        for position, token in enumerate(tokens):
            self.count += 1
            if skip_last and position == len(tokens) - 1:
                break
            self._text(self.detokenizer.push(token), delta)
            if self.stops is not None and self.stops.matched is not None:
                delta.tokens = tokens[: position + 1]
                if logprobs is not None:
                    delta.logprobs = logprobs[: position + 1]
                self._stopped(Ending("stop", self.stops.matched), delta, finished)
                return
            if self.parser is not None and self.parser.complete:
                self._stopped(Ending("stop"), delta, finished)
                return
        if finished is None:
            self.job.sink.delta(self, delta)
            return
        self._finish(finished, delta)

    def _text(self, piece: str, delta: Delta) -> None:
        splitter = self.splitter
        if splitter is not None:
            if splitter.reasoning:
                self.reasoning_tokens += 1
            piece = splitter.push(piece, delta)
        if not piece:
            return
        if self.parser_first and self.parser is not None:
            self._parse_first(piece, delta)
            return
        if self.stops is not None and self.count > self.min_tokens:
            piece = self.stops.push(piece)
        self._answer(piece, delta)

    def _parse_first(self, piece: str, delta: Delta) -> None:
        assert self.parser is not None
        parsed = Delta("", "", [])
        self.parser.push(piece, parsed)
        self._merge(parsed, delta)

    def _merge(self, parsed: Delta, delta: Delta) -> None:
        if parsed.reasoning:
            self.reasoning_tokens += 1
            delta.reasoning += parsed.reasoning
        delta.calls += parsed.calls
        content = parsed.content
        if content and self.stops is not None and self.count > self.min_tokens:
            content = self.stops.push(content)
        delta.content += content

    def _answer(self, piece: str, delta: Delta) -> None:
        if not piece:
            return
        if self.parser is None or self.parser_first:
            delta.content += piece
        else:
            self.parser.push(piece, delta)

    def _stopped(self, ending: Ending, delta: Delta, finished: Finished | None) -> None:
        """A stop string matched or the one call is there: it is over here, whatever the engine does next."""
        if self.parser is not None and not self.parser_first:
            self.parser.finish(delta)
        if finished is None and self.engine is not None:
            self.engine.forget(self, "stop")
        self._end(ending, delta, finished)

    def _finish(self, finished: Finished, delta: Delta) -> None:
        self.cached_tokens = finished.cached_tokens
        if finished.reason in ("refused", "error", "deadline"):
            self.fail(refusal(finished))
            return
        tail = self.detokenizer.finish()
        if self.splitter is not None:
            tail = self.splitter.push(tail, delta) + self.splitter.finish(delta)
        if self.parser_first and self.parser is not None:
            parsed = Delta("", "", [])
            self.parser.push(tail, parsed)
            self.parser.finish(parsed)
            self._merge(parsed, delta)
            tail = ""
        if self.stops is not None:
            tail = self.stops.push(tail) + self.stops.finish()
        self._answer(tail, delta)
        if self.parser is not None and not self.parser_first:
            self.parser.finish(delta)
        stop = finished.stop_token if finished.stop_token >= 0 else None
        if self.stops is not None and self.stops.matched is not None:
            self._end(Ending("stop", self.stops.matched), delta, finished)
            return
        eos = stop is not None and stop in self.job.eos_ids
        self._end(Ending(finished.reason, None if eos else stop), delta, finished)

    def _end(self, ending: Ending, delta: Delta, finished: Finished | None) -> None:
        if self.parser is not None and self.parser.called and ending.reason == "stop":
            ending.reason = "tool_calls"
        self.ending = ending
        self.finished = finished
        if not self.job.sink_closed:
            self.job.sink.delta(self, delta)
            self.job.sink.ended(self, ending)
        self.job.on_ended(self)

    def fail(self, error: ApiError) -> None:
        """The engine refused or lost it."""
        self.job.on_failed(self, error)


def refusal(finished: Finished) -> ApiError:
    """What the client is told of an engine's refusal or fault."""
    message, code = finished.message, finished.code
    if finished.reason == "deadline":
        return DeadlineExceeded(message or "the request's deadline passed")
    if finished.reason == "error":
        return EngineFault(message or "the engine failed this request", code=code or None)
    if code == "queue_full":
        return Overloaded(message or "the queue is full", retry_after=1)
    if code == "draining":
        return Unavailable(message or "the engine is draining", code=code, retry_after=5)
    if code in ("context_length", "never_fits"):
        return InvalidRequest(message or "the request can never fit", code="context_length_exceeded", param="prompt")
    return InvalidRequest(message or "the engine refused the request", code=code or None)
