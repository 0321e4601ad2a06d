"""Aborts in every phase of a request's life, on a whole engine with all tiers: nothing of them stays."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections import Counter
from pathlib import Path

import pytest
from support.engine import EngineUnderTest, run_engine
from support.tiers import tight

from tsd.engine.config import EngineConfig
from tsd.engine.protocol import Command

WHEREVER = {"submitted", "prefetching", "prefilling", "prefilled", "decoding", "retracting", "retracted"}
ENDED = "ended"


@pytest.fixture
def config(tmp_path: Path) -> EngineConfig:
    return tight(tmp_path / "m", host_cache_gb=0.002, disk_cache_dir=str(tmp_path / "kv"), disk_cache_gb=0.01)


def prompt(chance: random.Random) -> list[int]:
    """One of four families, so that prefixes are found in every tier."""
    family = random.Random(chance.randrange(4))
    shared = [family.randrange(3, 250) for _ in range(chance.randrange(160))]
    return shared + [chance.randrange(3, 250) for _ in range(chance.randrange(1, 40))]


def held() -> tuple[int, int, int]:
    """Descriptors, threads and tasks of this process."""
    return len(os.listdir("/proc/self/fd")), threading.active_count(), len(asyncio.all_tasks())


async def pause(chance: random.Random) -> None:
    """No time at all, some turns of the loop, or long enough for steps to land."""
    kind = chance.random()
    for _ in range(chance.randrange(4) if kind < 0.6 else 0):
        await asyncio.sleep(0)
    if kind > 0.7:
        await asyncio.sleep(chance.choice((0.001, 0.003, 0.01)))


async def abort_many(engine: EngineUnderTest, count: int) -> Counter[str]:
    """Submits and aborts until `count` requests were aborted; in which phases they were."""
    chance = random.Random(11)
    phases: Counter[str] = Counter()
    scheduler = engine.engine.scheduler
    while phases.total() - phases[ENDED] < count:
        scheduler.debug_retract(chance.choice((0, 0, 3)))
        ids = [engine.submit(prompt(chance), chance.choice((1, 20, 60))) for _ in range(chance.randrange(1, 24))]
        chance.shuffle(ids)
        for id_ in ids:
            await pause(chance)
            phases[scheduler.state_of(id_) or ENDED] += 1
            engine.abort(id_)
        for id_ in ids:
            end = (await engine.end(id_)).finished
            assert end is not None and end.reason in ("abort", "length", "stop")
        if chance.random() < 0.1:
            await engine.settle()
            engine.check_nothing_held()
    scheduler.debug_retract(0)
    return phases


@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_aborts_in_every_phase_leave_nothing(config: EngineConfig, count: int) -> None:
    async def body(engine: EngineUnderTest) -> None:
        await engine.generate([5, 6, 7], 2)
        await engine.settle()
        before = held()
        phases = await abort_many(engine, count)
        await engine.settle()
        engine.check_nothing_held()
        assert engine.engine.command(Command(1, "flush_cache", "disk")).ok
        await engine.settle()
        tiers = engine.engine.snapshot()["tiers"]
        for tier in ("device", "host"):
            assert tiers[tier]["free"] == tiers[tier]["total"], tiers
        assert engine.engine.scheduler.num_running_requests == 0
        assert held() == before
        missed = WHEREVER - set(phases)
        assert not missed if count > 5_000 else len(missed) <= 3, phases
        assert engine.engine.scheduler.counters["aborts"] == phases.total() - phases[ENDED]

    run_engine(config, body)
    assert not [file for file in Path(config.disk_cache_dir).rglob("*") if file.is_file() and file.name != "secret"]
