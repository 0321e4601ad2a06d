"""The host tier under a real engine: what comes back from host memory is what went out."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.engine import EngineUnderTest, Stream, run_engine
from support.tiny import tiny_model

from tsd.engine.config import EngineConfig

PAGE = 16


@pytest.fixture
def config(tmp_path: Path) -> EngineConfig:
    return EngineConfig(
        model=tiny_model(tmp_path / "m"),
        load_format="dummy",
        page_size=PAGE,
        max_num_seqs=8,
        max_total_tokens=320,
        max_model_len=256,
        chunked_prefill_size=32,
        host_cache_gb=0.02,
    )


def prompt(seed: int, length: int) -> list[int]:
    return [random.Random(seed).randrange(3, 250) for _ in range(length)]


@pytest.mark.parametrize("length", [5 * PAGE - 1, 5 * PAGE, 5 * PAGE + 1])
def test_cold_device_hit_and_host_hit_agree(config: EngineConfig, length: int) -> None:
    async def body(engine: EngineUnderTest) -> None:
        text = prompt(1, length)
        cold = await engine.generate(text, 8)
        device = await engine.generate(text, 8)
        # Others fill the device's pages, so that the prompt's are only on the host.
        for i in range(6):
            await engine.generate(prompt(50 + i, 200), 4)
        await engine.settle()
        before = engine.engine.scheduler.counters["hit_host"]
        host = await engine.generate(text, 8)
        assert engine.engine.scheduler.counters["hit_host"] > before
        assert cold.tokens == device.tokens == host.tokens
        assert device.finished is not None and host.finished is not None
        assert device.finished.cached_tokens == host.finished.cached_tokens == (length - 1) // PAGE * PAGE
        await engine.settle()
        engine.check_nothing_held()

    run_engine(config, body)


def test_retracted_requests_come_back_through_the_host(config: EngineConfig) -> None:
    async def body(engine: EngineUnderTest) -> tuple[list[list[int]], int]:
        ids = [engine.submit(prompt(i, 60), 90) for i in range(8)]
        ends: list[Stream] = [await engine.end(id_) for id_ in ids]
        await engine.settle()
        engine.check_nothing_held()
        return [end.tokens for end in ends], sum(end.finished.retractions for end in ends if end.finished)

    tight, retractions = run_engine(config, body)
    roomy, none = run_engine(replace(config, max_total_tokens=4096, host_cache_gb=0.0), body)
    assert retractions > 0 and none == 0
    assert tight == roomy
