"""Moments: what one snapshot and the one before it say about the seconds between them. Pure arithmetic.

Knows nothing about time windows longer than one snapshot; `history.py` keeps those.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tsd.console.numbers import ratio
from tsd.console.snapshot import Engine, EngineCounters, Latency, ServerCounters, Snapshot

PREFILL_STATES = frozenset({"prefilling", "prefetching", "submitted", "waiting", "queued", "bootstrapping"})


NO_LATENCY = Latency()


@dataclass(frozen=True)
class EngineMoment:
    """One engine between two snapshots. Rates are per second; `hit_ratio` is of the tokens looked up meanwhile."""

    prompt_s: float | None = None
    cached_s: float | None = None
    output_s: float | None = None
    steps_s: float | None = None
    retractions_s: float | None = None
    evictions_s: float | None = None
    errors_s: float | None = None
    hit_ratio: float | None = None
    available: float | None = None
    waiting: int | None = None
    step_ms: float | None = None
    gap_us: float | None = None
    state: str | None = None


@dataclass(frozen=True)
class Moment:
    """The whole server between two snapshots. Sums over engines; times are of the worst engine."""

    time: float
    latency: Latency = NO_LATENCY
    arrivals_s: float | None = None
    finished_s: float | None = None
    refused_s: float | None = None
    prompt_s: float | None = None
    output_s: float | None = None
    retractions_s: float | None = None
    evictions_s: float | None = None
    errors_s: float | None = None
    running: int | None = None
    waiting: int | None = None
    retracted: int | None = None
    prefetching: int | None = None
    available: float | None = None
    hit_ratio: float | None = None
    step_ms: float | None = None
    gap_us: float | None = None
    prefill_prompt: float | None = None
    clock_mhz: float | None = None
    temp_c: float | None = None
    compilations: int | None = None
    server_state: str | None = None
    engines: dict[int, EngineMoment] = field(default_factory=dict)


def derive(before: Snapshot | None, after: Snapshot) -> Moment:
    """The moment that `after` closes. Without `before` (or when no time passed) there are no rates."""
    seconds = after.time - before.time if before is not None else 0.0
    old = {engine.engine: engine for engine in before.engines} if before is not None else {}
    engines = {engine.engine: _engine(old.get(engine.engine), engine, seconds) for engine in after.engines}
    moments = engines.values()
    now = after.server.counters
    then = before.server.counters if before is not None else ServerCounters()
    queries, hits = _hit_deltas(old, after.engines)
    compilations = [e.graphs.compilations_after_ready for e in after.engines]
    return Moment(
        time=after.time,
        latency=after.server.latency,
        arrivals_s=_rate(then.requests, now.requests, seconds),
        finished_s=_rate(then.finished, now.finished, seconds),
        refused_s=_rate(then.refused, now.refused, seconds),
        prompt_s=_sum(m.prompt_s for m in moments),
        output_s=_sum(m.output_s for m in moments),
        retractions_s=_sum(m.retractions_s for m in moments),
        evictions_s=_sum(m.evictions_s for m in moments),
        errors_s=_sum(m.errors_s for m in moments),
        running=_int_sum(e.running for e in after.engines),
        waiting=_int_sum(e.waiting for e in after.engines),
        retracted=_int_sum(e.retracted for e in after.engines),
        prefetching=_int_sum(e.prefetching for e in after.engines),
        available=_min(m.available for m in moments),
        hit_ratio=ratio(hits, queries),
        step_ms=_max(m.step_ms for m in moments),
        gap_us=_max(m.gap_us for m in moments),
        prefill_prompt=_prefill_prompt(after.engines),
        clock_mhz=_min(g.sm_mhz for g in after.gpus),
        temp_c=_max(g.temp_c for g in after.gpus),
        compilations=_int_sum(compilations),
        server_state=after.server.state,
        engines=engines,
    )


def restarted(before: Snapshot | None, after: Snapshot) -> bool:
    """Whether another life of the server speaks in `after`."""
    if before is None:
        return False
    if before.uptime_s is not None and after.uptime_s is not None and after.uptime_s < before.uptime_s:
        return True
    old, new = before.server.counters.requests, after.server.counters.requests
    return old is not None and new is not None and new < old


def _engine(before: Engine | None, after: Engine, seconds: float) -> EngineMoment:
    now = after.counters
    then = before.counters if before is not None else EngineCounters()
    queries, hits = _hit_deltas({before.engine: before} if before else {}, (after,))
    device = after.tiers.device
    return EngineMoment(
        prompt_s=_rate(then.prompt_tokens, now.prompt_tokens, seconds),
        cached_s=_rate(then.cached_tokens, now.cached_tokens, seconds),
        output_s=_rate(then.generation_tokens, now.generation_tokens, seconds),
        steps_s=_rate(then.steps, now.steps, seconds),
        retractions_s=_rate(then.retractions, now.retractions, seconds),
        evictions_s=_rate(then.evictions, now.evictions, seconds),
        errors_s=_rate(then.errors, now.errors, seconds),
        hit_ratio=ratio(hits, queries),
        available=ratio(device.available, device.total),
        waiting=after.waiting,
        step_ms=after.step_ms.p50,
        gap_us=after.host_gap_us.p50,
        state=after.state,
    )


def _rate(before: int | None, after: int | None, seconds: float) -> float | None:
    if before is None or after is None or seconds <= 0 or after < before:
        return None
    return (after - before) / seconds


def _hit_deltas(old: dict[int, Engine], engines: tuple[Engine, ...]) -> tuple[float | None, float | None]:
    """Tokens looked up and found (in any tier) between the snapshots; None when no engine says."""
    queries = hits = 0
    known = False
    for engine in engines:
        before = old.get(engine.engine)
        if before is None or engine.hits.queries is None or before.hits.queries is None:
            continue
        known = True
        queries += max(0, engine.hits.queries - before.hits.queries)
        for tier in ("device", "host", "disk"):
            hits += max(0, (getattr(engine.hits, tier) or 0) - (getattr(before.hits, tier) or 0))
    return (queries, hits) if known else (None, None)


def _prefill_prompt(engines: tuple[Engine, ...]) -> float | None:
    """Mean prompt length, in uncached tokens, of the requests that have no output yet."""
    lengths = [
        max(0, row.prompt - (row.cached or 0))
        for engine in engines
        for row in engine.requests
        if row.prompt is not None and not row.output and (row.state or "").lower() in PREFILL_STATES
    ]
    return sum(lengths) / len(lengths) if lengths else None


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _int_sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _max(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _min(values: Iterable[float | None]) -> float | None:
    return min((value for value in values if value is not None), default=None)
