"""A whole engine in this process, driven as a front drives it, without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import numpy as np
import uvloop

from tsd.engine.build import build_engine
from tsd.engine.config import EngineConfig
from tsd.engine.engine import Engine
from tsd.engine.protocol import Abort, Finished, SamplingParams, Started, StepOutput, Submit, TokenLogprobs

T = TypeVar("T")
GREEDY = SamplingParams(temperature=0.0)


class Stream:
    """What one request has been told."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.prompt_logprobs: list[TokenLogprobs | None] | None = None
        self.started: Started | None = None
        self.finished: Finished | None = None
        self.ended = asyncio.Event()
        self.moved = asyncio.Event()


class EngineUnderTest:
    """Looks like a channel to the engine. `faults` holds what its loop died of."""

    def __init__(self, config: EngineConfig) -> None:
        self.faults: list[BaseException] = []
        self.streams: dict[int, Stream] = {}
        self.messages = 0
        self.engine = Engine(build_engine(config, lambda *_: None), self._fault)
        self.engine.requests.open(self)  # type: ignore[arg-type]
        self._next = 1

    def _fault(self, error: BaseException) -> None:
        self.faults.append(error)
        for stream in self.streams.values():
            stream.ended.set()
            stream.moved.set()

    def send(self, message: Any) -> None:
        """The engine's side of the channel."""
        assert isinstance(message, StepOutput)
        self.messages += 1
        for started in message.started:
            self.streams[started.id].started = started
        for id_, entries in message.prompt_logprobs.items():
            self.streams[id_].prompt_logprobs = entries
        ids = np.frombuffer(message.ids, "<i8").tolist()
        for i, (id_, token) in enumerate(zip(ids, np.frombuffer(message.tokens, "<i4").tolist(), strict=True)):
            stream = self.streams[id_]
            assert stream.finished is None, "a token came after the end"
            stream.tokens.append(token)
            if i in message.logprobs:
                stream.logprobs.append(message.logprobs[i])
            stream.moved.set()
        for end in message.finished:
            stream = self.streams[end.id]
            assert stream.finished is None, "a request ended twice"
            stream.finished = end
            stream.ended.set()
            stream.moved.set()

    def submit(self, prompt: list[int], max_tokens: int, sampling: SamplingParams = GREEDY, **more: Any) -> int:
        id_ = self._next
        self._next += 1
        self.streams[id_] = Stream()
        self.engine.submit(
            self,  # type: ignore[arg-type]
            Submit(id_, np.array(prompt, "<i4").tobytes(), max_tokens, sampling, **more),
        )
        return id_

    def abort(self, id_: int, reason: str = "abort") -> None:
        self.engine.abort(self, Abort(id_, reason))  # type: ignore[arg-type]

    async def end(self, id_: int) -> Stream:
        stream = self.streams[id_]
        await asyncio.wait_for(stream.ended.wait(), 60)
        if self.faults:
            raise self.faults[0]
        return stream

    async def generate(self, prompt: list[int], max_tokens: int, sampling: SamplingParams = GREEDY, **m: Any) -> Stream:
        return await self.end(self.submit(prompt, max_tokens, sampling, **m))

    async def settle(self) -> None:
        """Waits until nothing runs or is in flight."""
        for _ in range(1000):
            if self.engine.loop.idle:
                return
            await asyncio.sleep(0.005)
        raise AssertionError("the engine does not come to rest")

    def check_nothing_held(self) -> None:
        """No page, slot or request is left with an owner."""
        self.engine.scheduler.integrity()
        tiers = self.engine.snapshot()["tiers"]["device"]
        assert tiers["active"] == tiers["shared"] == tiers["fenced"] == tiers["in_flight"] == 0, tiers
        assert tiers["free"] + tiers["cached"] == tiers["total"]
        assert len(self.engine.requests) == 0


def run_engine(config: EngineConfig, body: Callable[[EngineUnderTest], Awaitable[T]]) -> T:
    """Builds an engine, runs `body` with it under uvloop, and closes it."""

    async def main() -> T:
        under_test = EngineUnderTest(config)
        try:
            return await body(under_test)
        finally:
            under_test.engine.close()

    return uvloop.run(main())
