"""The engine in this process, without server, front or sockets: what `latency` and `throughput` measure.

Owns a stand-in for the front that collects token times. Knows nothing about HTTP. Importing it imports torch.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, TypeVar, cast

import numpy as np
import uvloop

from tsd.bench.errors import BenchError, UsageError
from tsd.engine.build import build_engine
from tsd.engine.config import EngineConfig
from tsd.engine.engine import Engine
from tsd.engine.errors import StartError
from tsd.engine.model_errors import ModelError
from tsd.engine.protocol import SamplingParams, StepOutput, Submit
from tsd.engine.transport import Channel

T = TypeVar("T")


def engine_config(args: argparse.Namespace) -> EngineConfig:
    return EngineConfig(
        model=args.model,
        device=args.device,
        load_format=args.load_format,
        dtype=args.dtype,
        quantization=args.quantization,
        max_model_len=args.max_model_len,
        max_num_seqs=args.max_num_seqs,
        max_total_tokens=args.max_total_tokens,
        chunked_prefill_size=args.chunked_prefill_size,
        cpu_threads=args.cpu_threads,
        prefix_cache=args.prefix_cache,
        cuda_graphs=not args.no_cuda_graphs,
        overlap=not args.no_overlap,
        seed=args.seed,
        log_level="warning",
    )


@dataclass
class Answer:
    """Times of one request's tokens, `perf_counter` seconds."""

    sent: float
    times: list[float] = field(default_factory=list)
    reason: str = ""
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Offline:
    """Stands where a front's channel stands. Methods are called in the engine's event loop."""

    def __init__(self, config: EngineConfig) -> None:
        self._fault: BaseException | None = None
        self._answers: dict[int, Answer] = {}
        began = time.monotonic()
        try:
            parts = build_engine(config, lambda *_: None)
        except (StartError, ModelError) as error:
            raise BenchError(str(error)) from None
        self.build_s = time.monotonic() - began
        self.vocab_size = parts.vocab_size
        self.architecture = parts.architecture
        self.dtype = parts.dtype
        self.memory = parts.memory
        self.engine = Engine(parts, self._failed)
        self._channel = cast(Channel[Any], self)
        self.engine.requests.open(self._channel)

    def _failed(self, error: BaseException) -> None:
        self._fault = error
        for answer in self._answers.values():
            answer.ended.set()

    def send(self, message: object) -> None:
        """What the engine tells its front after a step."""
        assert isinstance(message, StepOutput)
        now = perf_counter()
        for id_ in np.frombuffer(message.ids, "<i8").tolist():
            self._answers[id_].times.append(now)
        for end in message.finished:
            answer = self._answers[end.id]
            answer.reason = end.reason
            answer.ended.set()

    def submit(self, prompt: np.ndarray, max_tokens: int) -> Answer:
        """One greedy request that ignores end-of-sequence tokens."""
        id_ = len(self._answers)
        answer = self._answers[id_] = Answer(perf_counter())
        sampling = SamplingParams(temperature=0.0)
        message = Submit(id_, prompt.astype("<i4").tobytes(), max_tokens, sampling)
        self.engine.submit(self._channel, message)
        return answer

    async def finish(self, answers: list[Answer]) -> None:
        """Wait for all; raises BenchError when the engine failed or refused one."""
        for answer in answers:
            await answer.ended.wait()
        if self._fault is not None:
            raise BenchError(f"the engine failed: {self._fault}")
        for answer in answers:
            if answer.reason != "length":
                raise BenchError(f"a request ended with {answer.reason!r}, not at its length: does it fit the model?")


def run_offline(config: EngineConfig, body: Callable[[Offline], Awaitable[T]]) -> T:
    """Build an engine, run `body` with it under uvloop, close it."""

    async def main() -> T:
        offline = Offline(config)
        try:
            return await body(offline)
        finally:
            offline.engine.close()

    return uvloop.run(main())


def random_prompts(source: np.random.Generator, count: int, length: int, vocab_size: int) -> list[np.ndarray]:
    """Ids away from both ends of the vocabulary, where special tokens live."""
    low, high = vocab_size // 64, max(vocab_size // 64 + 1, vocab_size - vocab_size // 32)
    return [source.integers(low, high, length, dtype=np.int32) for _ in range(count)]


def check_lengths(offline: Offline, input_len: int, output_len: int) -> None:
    """Raises UsageError where a request could never run."""
    if input_len <= 0 or output_len <= 0:
        raise UsageError("--input-len and --output-len must be above zero")
    if input_len + output_len > offline.memory.max_model_len:
        raise UsageError(f"{input_len} + {output_len} tokens do not fit the model's {offline.memory.max_model_len}")
