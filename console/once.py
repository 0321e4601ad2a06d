"""`tsd console --once`: one snapshot as text or JSON, for scripts. Knows nothing about Textual."""

from __future__ import annotations

import asyncio
import sys

from tsd.console.errors import CommandError, ForeignServer, GarbageStream, KeyRefused, ServerDown
from tsd.console.flags import ConsoleFlags
from tsd.console.link import Link, LinkState
from tsd.console.numbers import clock, count, duration, ms, percent, ratio, size, us
from tsd.console.snapshot import Percentiles, Snapshot
from tsd.console.source import ServerSource, Source

WAIT_S = 10.0

ERRORS: dict[LinkState, type[CommandError]] = {
    LinkState.DOWN: ServerDown,
    LinkState.STALE: ServerDown,
    LinkState.ENDED: ServerDown,
    LinkState.REFUSED: KeyRefused,
    LinkState.FOREIGN: ForeignServer,
    LinkState.GARBAGE: GarbageStream,
}


class FirstSnapshot:
    """A sink that waits for one snapshot, or for the trouble that comes instead."""

    def __init__(self) -> None:
        self.found: asyncio.Future[tuple[Snapshot, bytes]] = asyncio.get_running_loop().create_future()

    def link_changed(self, link: Link) -> None:
        error = ERRORS.get(link.state)
        if error is not None and not self.found.done():
            self.found.set_exception(error(link.detail or link.headline))

    def snapshot_arrived(self, snapshot: Snapshot, raw: bytes) -> None:
        if not self.found.done():
            self.found.set_result((snapshot, raw))


async def first_snapshot(source: Source, wait_s: float = WAIT_S) -> tuple[Snapshot, bytes]:
    """The source's first snapshot and its JSON. Raises the error that comes instead, ServerDown after `wait_s`."""
    sink = FirstSnapshot()
    task = asyncio.create_task(source.run(sink), name="console-once")
    try:
        async with asyncio.timeout(wait_s):
            return await sink.found
    except TimeoutError:
        raise ServerDown(f"no snapshot within {wait_s:g} s") from None
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def run_once(flags: ConsoleFlags) -> int:
    source: Source
    if flags.replay:
        from tsd.console.record import ReplaySource

        source = ReplaySource(flags.replay, speed=1000)
    elif flags.demo:
        from tsd.console.demo import DemoFleet
        from tsd.console.demo_source import DemoSource

        source = DemoSource(DemoFleet(), warm_s=0)
    else:
        source = ServerSource(flags.url, flags.key, flags.interval_s)
    snapshot, raw = asyncio.run(first_snapshot(source))
    if flags.json:
        sys.stdout.write(raw.decode().replace("\n", " ") + "\n")
    else:
        print(text_of(snapshot))
    return 0


def text_of(snapshot: Snapshot) -> str:
    """The snapshot as lines of `name value …`, one line a thing."""
    server = snapshot.server
    lines = [
        f"server   {server.name or 'tsd'} {server.version or '–'}  {server.model or '–'}  {server.state or '–'}"
        f"  up {duration(snapshot.uptime_s)}  at {clock(snapshot.time)}"
    ]
    for name, values, target in (
        ("ttft", server.latency.ttft_ms, server.slo.ttft_ms),
        ("tpot", server.latency.tpot_ms, server.slo.tpot_ms),
        ("queue", server.latency.queue_ms, None),
        ("e2e", server.latency.e2e_ms, None),
    ):
        lines.append(f"{name:<8} {_percentiles(values)}{_target(values.p95, target)}")
    c = server.counters
    lines.append(
        f"requests {count(c.requests)} taken  {count(c.finished)} finished  {count(c.aborted)} aborted  "
        f"{count(c.refused)} refused  {count(c.failed)} failed  {count(c.streams_open)} streams open"
    )
    for gpu in snapshot.gpus:
        lines.append(
            f"gpu {count(gpu.index):<4} {gpu.name or '–'}  util {percent(gpu.util)}  "
            f"memory {size(gpu.mem_used)} of {size(gpu.mem_total)}  {count(gpu.power_w)} W  {count(gpu.temp_c)} °C"
        )
    for engine in snapshot.engines:
        device, e = engine.tiers.device, engine.counters
        lines += [
            f"engine {engine.engine:<2}{engine.device or '–'}  {engine.state or '–'}  running {count(engine.running)}  "
            f"waiting {count(engine.waiting)}  retracted {count(engine.retracted)}  "
            f"step p50 {ms(engine.step_ms.p50)} p99 {ms(engine.step_ms.p99)}  "
            f"host gap p50 {us(engine.host_gap_us.p50)}",
            f"         pages {count(device.total)}  free {count(device.free)}  cached {count(device.cached)}  "
            f"active {count(device.active)}  shared {count(device.shared)}  "
            f"hits {percent(ratio(engine.hits.device, engine.hits.queries))}",
            f"         tokens in {count(e.prompt_tokens)}  out {count(e.generation_tokens)}  "
            f"retractions {count(e.retractions)}  evictions {count(e.evictions)}  errors {count(e.errors)}  "
            f"compilations after ready {count(engine.graphs.compilations_after_ready)}",
        ]
    return "\n".join(lines)


def _percentiles(values: Percentiles) -> str:
    return f"p50 {ms(values.p50)}  p95 {ms(values.p95)}  p99 {ms(values.p99)}"


def _target(value: float | None, target: float | None) -> str:
    if target is None:
        return ""
    verdict = "" if value is None else "  missed" if value > target else "  met"
    return f"  target {ms(target)}{verdict}"
