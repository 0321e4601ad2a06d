"""The default model under page pressure: 64 requests, hundreds of retractions, and not a byte of difference."""

from __future__ import annotations

import random
from functools import partial

import pytest
from support.engine import EngineUnderTest, run_engine

from tsd.engine.config import EngineConfig
from tsd.engine.protocol import SamplingParams
from tsd.scheduler.types import SchedulerConfig

REQUESTS, TOKENS = 64, 36


def sampling(i: int) -> SamplingParams:
    """Every fourth request greedy; the others draw, with penalties or log-probabilities among them."""
    if i % 4 == 0:
        return SamplingParams(temperature=0.0, logprobs=2)
    if i % 4 == 1:
        return SamplingParams(temperature=0.8, top_p=0.9, seed=i)
    if i % 4 == 2:
        return SamplingParams(temperature=0.9, seed=i, frequency_penalty=0.7, repetition_penalty=1.1)
    return SamplingParams(temperature=1.0, top_k=20, seed=i, logprobs=0)


async def body(engine: EngineUnderTest) -> tuple[list[object], int]:
    chance = random.Random(3)
    prompts = [[chance.randrange(100, 40_000) for _ in range(chance.randrange(20, 60))] for _ in range(REQUESTS)]
    ids = [engine.submit(prompt, TOKENS, sampling(i)) for i, prompt in enumerate(prompts)]
    ends = [await engine.end(id_) for id_ in ids]
    await engine.settle()
    engine.check_nothing_held()
    told: list[object] = []
    retractions = 0
    for end in ends:
        assert end.finished is not None
        retractions += end.finished.retractions
        usage = (end.finished.prompt_tokens, end.finished.output_tokens, end.finished.reason)
        told.append((end.tokens, [entry.logprob for entry in end.logprobs], usage))
    return told, retractions


@pytest.mark.slow
@pytest.mark.parametrize("host_gb", [0.0, 0.05], ids=["recompute", "host tier"])
def test_retracted_runs_equal_a_roomy_one(default_model: str, host_gb: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def config(tokens: int, host: float) -> EngineConfig:
        return EngineConfig(
            model=default_model,
            deterministic=True,
            max_num_seqs=32,
            max_model_len=256,
            max_total_tokens=tokens,
            chunked_prefill_size=128,
            host_cache_gb=host,
        )

    roomy, none = run_engine(config(8192, 0.0), body)
    # Pages run short, and beyond that every second step takes the latest arrival's.
    monkeypatch.setattr("tsd.engine.engine.SchedulerConfig", partial(SchedulerConfig, debug_retract_every=2))
    tight, some = run_engine(config(512, host_gb), body)
    assert none == 0
    assert some >= 200, some
    assert tight == roomy
