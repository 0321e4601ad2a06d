"""The host tier under a real engine: what comes back from host memory is what went out."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.engine import EngineUnderTest, Stream, run_engine
from support.tiers import PAGE, check_all_tiers_agree, count_waits, prompt, push_out, split_loads, tight
from support.tiny import tiny_model

from tsd.cache.disk import DiskStore
from tsd.engine.config import EngineConfig
from tsd.engine.errors import StartError
from tsd.engine.tiers import Mover
from tsd.scheduler.types import Move


@pytest.fixture
def config(tmp_path: Path) -> EngineConfig:
    return tight(tmp_path / "m", host_cache_gb=0.02)


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


@pytest.mark.parametrize("groups", [1, 4], ids=["whole", "by layers"])
def test_all_tiers_agree_whether_pages_come_whole_or_by_layers(
    config: EngineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: int
) -> None:
    if groups > 1:
        split_loads(monkeypatch)
    deep = replace(config, model=tiny_model(tmp_path / "deep", num_hidden_layers=5), deterministic=True)
    waits = check_all_tiers_agree(deep, tmp_path)
    assert groups > 1 or not waits


@pytest.mark.parametrize("ok", [True, False])
def test_a_prefill_that_began_before_the_last_layers_came_or_failed_to(
    config: EngineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ok: bool
) -> None:
    split_loads(monkeypatch)
    whole = Mover._load_layers

    def late(self: Mover, move: Move, first_layer: int, end_layer: int) -> None:
        if first_layer:
            time.sleep(0.1)
            if not ok:
                raise RuntimeError("no such luck")
        whole(self, move, first_layer, end_layer)

    monkeypatch.setattr(Mover, "_load_layers", late)
    text = prompt(1, 5 * PAGE + 20)

    async def body(engine: EngineUnderTest) -> None:
        waits = count_waits(engine)
        cold = await engine.generate(text, 8)
        await push_out(engine)
        host = await engine.generate(text, 8)
        assert host.tokens == cold.tokens and host.finished is not None
        assert len(waits) >= 1
        assert host.finished.retractions == (not ok)
        assert host.finished.cached_tokens == (6 * PAGE if ok else 0)
        await engine.settle()
        engine.check_nothing_held()

    run_engine(replace(config, model=tiny_model(tmp_path / "deep", num_hidden_layers=5)), body)


@pytest.mark.parametrize("length", [8 * PAGE - 1, 8 * PAGE, 8 * PAGE + 1])
def test_a_new_engine_finds_its_pages_on_disk(config: EngineConfig, tmp_path: Path, length: int) -> None:
    on_disk = replace(config, disk_cache_dir=str(tmp_path / "kv"), disk_cache_gb=0.05)
    text = prompt(2, length)

    async def first(engine: EngineUnderTest) -> list[int]:
        tokens = (await engine.generate(text, 8)).tokens
        for i in range(6):
            await engine.generate(prompt(80 + i, 200), 4)
        await engine.settle()
        return tokens

    async def second(engine: EngineUnderTest) -> list[int]:
        stream = await engine.generate(text, 8)
        assert engine.engine.scheduler.counters["hit_disk"] > 0
        assert stream.finished is not None and stream.finished.cached_tokens > 0
        await engine.settle()
        engine.check_nothing_held()
        return stream.tokens

    assert run_engine(on_disk, first) == run_engine(on_disk, second)


def test_a_rotten_block_is_a_miss(config: EngineConfig, tmp_path: Path) -> None:
    on_disk = replace(config, disk_cache_dir=str(tmp_path / "kv"), disk_cache_gb=0.05)
    text = prompt(3, 8 * PAGE)

    async def body(engine: EngineUnderTest) -> list[int]:
        tokens = (await engine.generate(text, 8)).tokens
        for i in range(6):
            await engine.generate(prompt(90 + i, 200), 4)
        await engine.settle()
        return tokens

    cold = run_engine(on_disk, body)
    blocks = [file for file in (tmp_path / "kv").rglob("*") if file.is_file() and file.stat().st_size > 1000]
    assert blocks
    for block in blocks:
        raw = bytearray(block.read_bytes())
        raw[len(raw) // 2] ^= 1
        block.write_bytes(raw)
    assert run_engine(on_disk, body) == cold


def test_a_disk_that_refuses_blocks_holds_only_what_is_counted(
    config: EngineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fills up, has room again, and fills up once more, while requests run."""
    writes = 0
    write = DiskStore.write

    def sometimes(self: DiskStore, key: bytes, parts: Sequence[memoryview]) -> bool:
        nonlocal writes
        writes += 1
        return writes % 12 != 9 and write(self, key, parts)

    monkeypatch.setattr(DiskStore, "write", sometimes)

    async def body(engine: EngineUnderTest) -> int:
        for i in range(6):
            await engine.generate(prompt(i, 90), 4)
        await engine.settle()
        engine.check_nothing_held()
        return int(engine.engine.snapshot()["tiers"]["disk"]["cached"])

    counted = run_engine(replace(config, disk_cache_dir=str(tmp_path / "kv"), disk_cache_gb=0.1), body)
    blocks = [file for file in (tmp_path / "kv").rglob("*") if file.is_file() and file.stat().st_size > 1000]
    assert len(blocks) == counted > 0 and writes > counted


def test_kv_events_tell_of_stored_pages(config: EngineConfig) -> None:
    import msgspec
    import zmq

    async def body(engine: EngineUnderTest) -> None:
        feed = engine.engine.events
        assert feed is not None
        socket = zmq.Context.instance().socket(zmq.SUB)
        try:
            socket.connect(feed.endpoint)
            socket.subscribe(b"")
            await asyncio.sleep(0.2)
            text = prompt(4, 4 * PAGE)
            await engine.generate(text, 4)
            await engine.settle()
            await asyncio.sleep(0.2)
            heard = []
            while socket.poll(0):
                heard.append(socket.recv_multipart(zmq.NOBLOCK))
        finally:
            socket.close(linger=0)
        # Number 0 said that nothing is cached, before anybody listened.
        assert [int.from_bytes(sequence, "big") for _, sequence, _ in heard] == list(range(1, len(heard) + 1))
        events = [event for _, _, payload in heard for event in msgspec.msgpack.decode(payload)[1]]
        for medium in ("GPU", "CPU"):
            stored = [e for e in events if e["type"] == "BlockStored" and e["medium"] == medium]
            assert stored and stored[0]["parent_block_hash"] is None and stored[0]["block_size"] == PAGE
            assert stored[0]["token_ids"] == text[: len(stored[0]["block_hashes"]) * PAGE]

    run_engine(replace(config, kv_events_config='{"endpoint": "tcp://127.0.0.1:*"}'), body)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"disk_cache_dir": "/tmp/x"}, "--disk-cache-gb"),
        ({"disk_cache_dir": "/tmp/x", "disk_cache_gb": 1.0, "host_cache_gb": 0.0}, "--host-cache-gb"),
        ({"disk_cache_dir": "/proc/nothing", "disk_cache_gb": 1.0}, "/proc/nothing"),
        ({"kv_events_config": "{"}, "--kv-events-config"),
        ({"kv_events_config": '{"endpoint": "nonsense://x"}'}, "--kv-events-config"),
    ],
)
def test_settings_that_cannot_work_are_named(config: EngineConfig, change: dict[str, object], words: str) -> None:
    async def body(engine: EngineUnderTest) -> None: ...

    with pytest.raises(StartError, match=re.escape(words)):
        run_engine(replace(config, **change), body)
