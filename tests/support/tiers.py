"""What a request gets when its pages are computed, on the device, in host memory or on disk: the same, everywhere."""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

import pytest
from msgspec.structs import replace
from support.engine import EngineUnderTest, run_engine
from support.tiny import tiny_model

from tsd.engine import layer_load
from tsd.engine.config import EngineConfig
from tsd.engine.protocol import SamplingParams
from tsd.scheduler.types import ExecutionPlan

PAGE = 16
GREEDY = SamplingParams(temperature=0.0, logprobs=0)
SEEDED = SamplingParams(temperature=0.9, seed=11, logprobs=0)


class Told(NamedTuple):
    tokens: list[int]
    logprobs: list[float]
    cached: int


def tight(model: Path, **changes: object) -> EngineConfig:
    """A tiny engine whose pages run out after a handful of requests."""
    small = EngineConfig(
        model=tiny_model(model),
        load_format="dummy",
        page_size=PAGE,
        max_num_seqs=8,
        max_total_tokens=320,
        max_model_len=256,
        chunked_prefill_size=32,
    )
    return replace(small, **changes)


def prompt(seed: int, length: int) -> list[int]:
    return [random.Random(seed).randrange(3, 250) for _ in range(length)]


def split_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every copy comes in several groups of layers, however small it is."""
    monkeypatch.setattr(layer_load, "GROUP_BYTES", 1)


def count_waits(engine: EngineUnderTest) -> list[int]:
    """From now on the number of rows of each step that waits for layers."""
    seen: list[int] = []
    executor = engine.engine.parts.executor
    launch = executor.launch

    def counting(plan: ExecutionPlan) -> None:
        if plan.waits:
            seen.append(plan.num_rows)
        launch(plan)

    executor.launch = counting  # type: ignore[method-assign]
    return seen


async def ask(engine: EngineUnderTest, text: list[int], sampling: SamplingParams, salt: str) -> Told:
    stream = await engine.generate(text, 8, sampling, cache_salt=salt)
    assert stream.finished is not None and stream.finished.reason == "length"
    return Told(stream.tokens, [entry.logprob for entry in stream.logprobs], stream.finished.cached_tokens)


async def ask_host(engine: EngineUnderTest, text: list[int], sampling: SamplingParams, salt: str) -> Told:
    """All that is cached of it comes from host memory."""
    before = engine.engine.scheduler.counters["hit_host"]
    told = await ask(engine, text, sampling, salt)
    assert engine.engine.scheduler.counters["hit_host"] == before + told.cached
    return told


async def push_out(engine: EngineUnderTest) -> None:
    """Others fill the device's pages, so that what was there before is only below."""
    for i in range(6):
        await engine.generate(prompt(50 + i, 200), 4)
    await engine.settle()


def check_all_tiers_agree(config: EngineConfig, folder: Path) -> list[int]:
    """Cold, device-hit, host-hit and disk-hit runs at k pages - 1, k pages and k pages + 1, greedy and seeded.

    Returns the rows of the steps that waited for layers.
    """
    on_disk = replace(config, disk_cache_dir=str(folder / "kv"), disk_cache_gb=0.05)
    lengths = (5 * PAGE - 1, 5 * PAGE, 5 * PAGE + 1)
    tail = prompt(7, 3 * PAGE + 5)

    async def first(engine: EngineUnderTest) -> tuple[dict[tuple[int, int], Told], list[int]]:
        waits = count_waits(engine)
        cold: dict[tuple[int, int], Told] = {}
        for length in lengths:
            for kind, sampling in enumerate((GREEDY, SEEDED)):
                text = prompt(length, length)
                cold[length, kind] = await ask(engine, text, sampling, f"cold {kind}")
                cold[-length, kind] = await ask(engine, text + tail, sampling, f"cold, longer {kind}")
                assert cold[length, kind].cached == cold[-length, kind].cached == 0
                salt = f"kept {kind}"
                await ask(engine, text, sampling, salt)
                device = await ask(engine, text, sampling, salt)
                assert device == cold[length, kind]._replace(cached=(length - 1) // PAGE * PAGE)
                await push_out(engine)
                assert await ask_host(engine, text, sampling, salt) == device
                await push_out(engine)
                longer = await ask_host(engine, text + tail, sampling, salt)
                assert longer == cold[-length, kind]._replace(cached=length // PAGE * PAGE)
        await push_out(engine)
        engine.check_nothing_held()
        return cold, waits

    async def second(engine: EngineUnderTest) -> dict[tuple[int, int], Told]:
        found: dict[tuple[int, int], Told] = {}
        for length in lengths:
            before = engine.engine.scheduler.counters["hit_disk"]
            found[length, 0] = await ask(engine, prompt(length, length), GREEDY, "kept 0")
            assert engine.engine.scheduler.counters["hit_disk"] == before + (length - 1) // PAGE * PAGE
            found[length, 1] = await ask(engine, prompt(length, length), SEEDED, "kept 1")
        await engine.settle()
        engine.check_nothing_held()
        return found

    cold, waits = run_engine(on_disk, first)
    for key, told in run_engine(on_disk, second).items():
        assert told == cold[key]._replace(cached=(key[0] - 1) // PAGE * PAGE)
    return waits
