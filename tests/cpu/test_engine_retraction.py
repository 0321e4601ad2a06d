"""The default model under page pressure: what a pool far too small gives is what a roomy one gives, byte for byte.

A scheduler that leaves rows room to grow retracts seldom: of these 64 requests about 17 in this pool (66 without that
room). The rest of the retractions are forced, on the same way out and back in.
"""

from __future__ import annotations

import asyncio
import random
from typing import NamedTuple

import pytest
from msgspec.structs import replace
from support.engine import EngineUnderTest, run_engine

from tsd.engine.config import EngineConfig
from tsd.engine.protocol import SamplingParams

REQUESTS = 64


class Told(NamedTuple):
    """All that a client of one request sees, apart from times and how often it was retracted."""

    tokens: list[int]
    logprobs: list[float]
    reason: str
    prompt_tokens: int
    output_tokens: int
    stop_token: int


def sampling(i: int) -> SamplingParams:
    """Greedy, seeded, penalised and filtered rows side by side; each with logprobs."""
    if i % 4 == 0:
        return SamplingParams(temperature=0.0, logprobs=1)
    return SamplingParams(
        temperature=0.8,
        seed=100 + i,
        top_k=40 if i % 4 == 1 else 0,
        top_p=0.9 if i % 4 == 2 else 1.0,
        frequency_penalty=0.5 if i % 4 == 3 else 0.0,
        repetition_penalty=1.1 if i % 4 == 3 else 1.0,
        logprobs=0,
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("host_cache_gb", [0.0, 0.05])
def test_two_hundred_retractions_change_nothing(default_model: str, host_cache_gb: float) -> None:
    config = EngineConfig(
        model=default_model, deterministic=True, page_size=16, max_num_seqs=16, max_model_len=512, cpu_threads=1
    )

    async def body(engine: EngineUnderTest, every: int) -> tuple[list[Told], int]:
        engine.engine.scheduler.debug_retract(every)
        rng = random.Random(7)
        prompts = [[rng.randrange(20, 40_000) for _ in range(rng.randrange(8, 24))] for _ in range(REQUESTS)]
        ids = [engine.submit(prompts[i], 56, sampling(i), min_tokens=8) for i in range(REQUESTS)]
        for id_ in ids:
            await asyncio.wait_for(engine.streams[id_].ended.wait(), 800)
            assert not engine.faults
        await engine.settle()
        engine.check_nothing_held()
        told: list[Told] = []
        retractions = 0
        for id_ in ids:
            stream = engine.streams[id_]
            end = stream.finished
            assert end is not None and len(stream.logprobs) == len(stream.tokens) == end.output_tokens
            retractions += end.retractions
            chances = [entry.logprob for entry in stream.logprobs]
            told.append(Told(stream.tokens, chances, end.reason, end.prompt_tokens, end.output_tokens, end.stop_token))
        return told, retractions

    small = replace(config, max_total_tokens=16 * 40, host_cache_gb=host_cache_gb)
    tight, many = run_engine(small, lambda engine: body(engine, 2))
    roomy, none = run_engine(replace(config, max_total_tokens=16 * 1000), lambda engine: body(engine, 0))
    assert none == 0
    assert many >= 200, many
    assert tight == roomy
