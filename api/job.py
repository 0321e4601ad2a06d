"""One client request: its sequences, its sink, its end. Knows no wire format and no socket.

A job ends exactly once: every sequence ended, or one failed (the others are aborted), or the client left.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Protocol

from tsd.api.errors import ApiError
from tsd.api.output import Delta, Ending
from tsd.api.sequence import Sequence

if TYPE_CHECKING:
    from tsd.api.metrics import Metrics
    from tsd.api.tracing import TraceContext


class Sink(Protocol):
    """Where a job's output goes. Called from the engine's step, so it must neither block nor raise."""

    def delta(self, sequence: Sequence, delta: Delta) -> None: ...
    def ended(self, sequence: Sequence, ending: Ending) -> None: ...


class Job:
    """`started` and `done` are futures of the running loop; `error` is set before `done` when the job failed."""

    def __init__(self, public_id: str, owner: str, metrics: Metrics, eos_ids: frozenset[int], route: str) -> None:
        loop = asyncio.get_running_loop()
        self.public_id = public_id
        self.owner = owner
        self.route = route
        self.metrics = metrics
        self.eos_ids = eos_ids
        self.created = int(time.time())
        self.sink: Sink = Collector()
        self.sequences: list[Sequence] = []
        self.open = 0
        self.started: asyncio.Future[None] = loop.create_future()
        self.done: asyncio.Future[None] = loop.create_future()
        self.error: ApiError | None = None
        self.sink_closed = False
        self.trace: TraceContext | None = None
        """The caller's, where it sent one."""

    def on_started(self) -> None:
        if not self.started.done():
            self.started.set_result(None)

    def on_ended(self, sequence: Sequence) -> None:
        self.metrics.on_ended(sequence)
        self.on_started()
        self.open -= 1
        if self.open == 0:
            self._close()

    def on_failed(self, sequence: Sequence, error: ApiError) -> None:
        self.metrics.on_failed(sequence, error)
        if self.error is None:
            self.error = error
        self.abort("abort", except_for=sequence)
        self.on_started()
        self._close()

    def abort(self, reason: str = "abort", except_for: Sequence | None = None) -> None:
        """Ends every sequence that still runs. Nothing more reaches the sink."""
        self.sink_closed = True
        for sequence in self.sequences:
            if sequence is except_for or sequence.ending is not None or sequence.engine is None:
                continue
            if sequence.engine.forget(sequence, reason):
                self.metrics.on_aborted(sequence)

    def _close(self) -> None:
        self.sink_closed = True
        if not self.done.done():
            self.done.set_result(None)

    @property
    def prompt_tokens(self) -> int:
        """Each distinct prompt once."""
        return sum(len(s.prompt) for s in {s.prompt_index: s for s in self.sequences}.values())

    @property
    def cached_tokens(self) -> int:
        return sum(s.cached_tokens for s in {s.prompt_index: s for s in reversed(self.sequences)}.values())

    @property
    def completion_tokens(self) -> int:
        return sum(s.count for s in self.sequences)

    @property
    def reasoning_tokens(self) -> int:
        return sum(s.reasoning_tokens for s in self.sequences)


class Collected:
    """Everything one sequence gave."""

    __slots__ = ("calls", "content", "logprobs", "reasoning", "tokens")

    def __init__(self) -> None:
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[list[str]] = []
        """[id, name, arguments] of each."""
        self.tokens: list[int] = []
        self.logprobs: list = []  # type: ignore[type-arg]

    def add(self, delta: Delta) -> None:
        if delta.content:
            self.content.append(delta.content)
        if delta.reasoning:
            self.reasoning.append(delta.reasoning)
        for call in delta.calls:
            if call.index == len(self.calls):
                self.calls.append([call.id, call.name, ""])
            self.calls[call.index][2] += call.arguments
        self.tokens += delta.tokens
        if delta.logprobs is not None:
            self.logprobs += delta.logprobs

    @property
    def text(self) -> str:
        return "".join(self.content)


class Collector:
    """The sink of an answer that is not streamed."""

    def __init__(self) -> None:
        self.collected: dict[int, Collected] = {}

    def delta(self, sequence: Sequence, delta: Delta) -> None:
        self.of(sequence.index).add(delta)

    def ended(self, sequence: Sequence, ending: Ending) -> None:
        self.of(sequence.index)

    def of(self, index: int) -> Collected:
        found = self.collected.get(index)
        if found is None:
            found = self.collected[index] = Collected()
        return found
