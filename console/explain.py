"""Why is TTFT up? A pure function from recent moments to a verdict with causes, each with its numbers.

It compares the last `RECENT_S` seconds with the calm before (everything older than `GAP_S`, up to `BASE_S`), by
medians. A cause is named only when its own numbers moved; its score orders the list. Owns the rules and the wording;
knows nothing about screens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from statistics import fmean, median

from tsd.console.moment import Moment
from tsd.console.numbers import DASH, count, ms, percent, us
from tsd.console.snapshot import Slo

RECENT_S = 10.0
GAP_S = 30.0
BASE_S = 300.0

DOWN_STATES = frozenset({"failed", "dead", "stuck", "down"})


class Level(IntEnum):
    UNKNOWN = 0
    OK = 1
    WATCH = 2
    BAD = 3


@dataclass(frozen=True)
class Cause:
    """One reason. `evidence` holds the numbers, `advice` what to do or look at, `screen` where the console shows it."""

    kind: str
    score: float
    title: str
    evidence: str
    advice: str
    screen: str


@dataclass(frozen=True)
class Explanation:
    level: Level = Level.UNKNOWN
    headline: str = "Waiting for two snapshots."
    causes: tuple[Cause, ...] = ()


@dataclass(frozen=True)
class Window:
    """The recent moments and the calm ones before them; `last` is the newest of all."""

    recent: Sequence[Moment]
    base: Sequence[Moment]
    slo: Slo

    @property
    def last(self) -> Moment:
        return self.recent[-1]

    def now(self, pick: Callable[[Moment], float | None]) -> float | None:
        return _median(map(pick, self.recent))

    def before(self, pick: Callable[[Moment], float | None]) -> float | None:
        return _median(map(pick, self.base))

    def mean(self, pick: Callable[[Moment], float | None]) -> float | None:
        known = [value for value in map(pick, self.recent) if value is not None]
        return fmean(known) if known else None


def explain(moments: Sequence[Moment], slo: Slo) -> Explanation:
    """The verdict on the newest moment."""
    if not moments:
        return Explanation()
    end = moments[-1].time
    window = _window(moments, end, slo)
    level, headline = _verdict(window)
    found = [cause for rule in RULES if (cause := rule(window)) is not None]
    if level is Level.OK:
        # While TTFT is fine only what stops the engine matters.
        found = [cause for cause in found if cause.score >= 90]
    elif not found and level is not Level.UNKNOWN:
        found = [_faded(moments, window) or _unexplained(window)]
    if any(cause.score >= 90 for cause in found):
        level = Level.BAD
    return Explanation(level, headline, tuple(sorted(found, key=lambda cause: -cause.score)))


def _window(moments: Sequence[Moment], end: float, slo: Slo) -> Window:
    """The window that ends at `end`; some moment must not be later."""
    until = [m for m in moments if end - BASE_S <= m.time <= end]
    recent = [m for m in until if m.time > end - RECENT_S] or [until[-1]]
    return Window(recent, [m for m in until if m.time <= end - GAP_S], slo)


def _ttft(moment: Moment) -> float | None:
    return moment.latency.ttft_ms.p95


def _verdict(window: Window) -> tuple[Level, str]:
    now, before, target = _ttft(window.last), window.before(_ttft), window.slo.ttft_ms
    if now is None:
        return Level.UNKNOWN, "No request has had its first token lately: nothing to explain."
    versus = f", {now / before:.1f}× what it was ({ms(before)})" if before and now > 1.3 * before else ""
    if target:
        if now > target:
            return Level.BAD, f"TTFT p95 is {ms(now)}, {now / target:.1f}× its target ({ms(target)}){versus}."
        if before and now > 1.5 * before and now > 0.6 * target:
            return Level.WATCH, f"TTFT p95 is {ms(now)}, within its target ({ms(target)}){versus}."
        return Level.OK, f"TTFT p95 is {ms(now)}, within its target ({ms(target)})."
    if before and now > 1.5 * before:
        return Level.WATCH, f"TTFT p95 is {ms(now)}{versus}."
    return Level.OK, f"TTFT p95 is {ms(now)}; no target is set."


def _engine_down(window: Window) -> Cause | None:
    engines = window.last.engines
    bad = {number: e.state for number, e in engines.items() if (e.state or "").lower() in DOWN_STATES}
    if not bad:
        return None
    names = ", ".join(f"engine {number} is {state}" for number, state in sorted(bad.items()))
    return Cause(
        "engine down",
        100,
        "An engine is down" if len(bad) == 1 else f"{len(bad)} engines are down",
        f"{names}; {len(engines) - len(bad)} of {len(engines)} carry the load",
        "Its cause is in the event log and in the server's own log.",
        "events",
    )


def _held(window: Window) -> Cause | None:
    state = (window.last.server_state or "").lower()
    engines = {(e.state or "").lower() for e in window.last.engines.values()}
    held = next((s for s in ("paused", "draining", "starting") if s == state or s in engines), None)
    if held is None:
        return None
    advice = {
        "paused": "Nothing is admitted until it is resumed: R.",
        "draining": "It finishes what it has and takes nothing new.",
        "starting": "Weights load or graphs are captured; see the engine's phases.",
    }[held]
    return Cause("held", 95, f"The server is {held}", f"{_n(window.last.waiting)} requests wait", advice, "overview")


def _memory(window: Window) -> Cause | None:
    free, before = window.now(lambda m: m.available), window.before(lambda m: m.available)
    retractions = window.mean(lambda m: m.retractions_s)
    if free is None or (free > 0.05 and not (retractions and free <= 0.15)):
        return None
    waiting = (window.last.waiting or 0) + (window.last.retracted or 0)
    if not retractions and not waiting:
        return None
    was = f" (was {percent(before)})" if before is not None and before > free + 0.02 else ""
    evidence = f"{percent(free, 1)} of pages can be taken{was}"
    if retractions:
        evidence += f", {count(retractions * 60)} retractions/min, {_n(window.last.retracted)} retracted wait to return"
    return Cause(
        "memory",
        80 if retractions else 65,
        "KV memory is full",
        evidence,
        "Retracted requests re-enter before new ones. See who holds the pages; shed load or add pages.",
        "pages",
    )


def _queue(window: Window) -> Cause | None:
    now, before = window.now(lambda m: m.waiting), window.before(lambda m: m.waiting)
    if not now or now < 4 or (before is not None and now < 2 * before + 2):
        return None
    wait, ttft = window.last.latency.queue_ms.p95, _ttft(window.last)
    arrivals, finished = window.mean(lambda m: m.arrivals_s), window.mean(lambda m: m.finished_s)
    parts = [f"{now:.0f} wait (were {before:.0f})" if before is not None else f"{now:.0f} wait"]
    if arrivals is not None and finished is not None:
        parts.append(f"{arrivals:.1f}/s arrive, {finished:.1f}/s finish")
    share = None
    if wait is not None and ttft:
        share = min(1.0, wait / ttft)
        parts.append(f"queue p95 {ms(wait)} = {percent(share)} of TTFT")
    grows = arrivals is not None and finished is not None and arrivals > 1.1 * finished
    return Cause(
        "queue",
        45 + 25 * (share or 0.5) + (5 if grows else 0),
        "Requests queue: more come than are served" if grows else "Requests queue",
        ", ".join(parts),
        "Add engines, lower the offered load, or raise the batch limit if memory allows.",
        "requests",
    )


def _hit_rate(window: Window) -> Cause | None:
    now, before = window.now(lambda m: m.hit_ratio), window.before(lambda m: m.hit_ratio)
    if now is None or before is None or before < 0.15 or now > before - 0.15:
        return None
    compute, was = window.mean(_computed), _mean(map(_computed, window.base))
    extra = f"; {count(compute)} prompt tok/s to compute (were {count(was)})" if compute and was else ""
    evictions = window.mean(lambda m: m.evictions_s)
    evicted = f", {count(evictions)} evictions/s" if evictions else ""
    return Cause(
        "cache",
        50 + 40 * (before - now),
        "The cache hit rate fell",
        f"{percent(before)} → {percent(now)} of prompt tokens{evicted}{extra}",
        "New prompts share no prefix, or the shared ones were evicted: look at the hottest prefixes.",
        "pages",
    )


def _long_prefills(window: Window) -> Cause | None:
    now, before = window.now(lambda m: m.prefill_prompt), window.before(lambda m: m.prefill_prompt)
    if now is None or now < 2048 or (before is not None and now < 1.8 * before):
        return None
    was = f" (were {count(before)})" if before is not None else ""
    speed = window.mean(_computed)
    takes = f"; at {count(speed)} prompt tok/s one takes {ms(1000 * now / speed)} alone" if speed else ""
    return Cause(
        "prefill",
        55 if before else 48,
        "Long prefills",
        f"{count(now)} uncached tokens a waiting prompt{was}{takes}",
        "Prompts without a cached prefix share the token budget. Sort the requests by prompt length.",
        "requests",
    )


def _host_gap(window: Window) -> Cause | None:
    gap, before, step = (
        window.now(lambda m: m.gap_us),
        window.before(lambda m: m.gap_us),
        window.now(lambda m: m.step_ms),
    )
    if gap is None or not step or gap < 200 or gap < 100 * step:
        return None
    if before is not None and gap < 1.5 * before:
        return None
    share = gap / (1000 * step + gap)
    was = f" (was {us(before)})" if before is not None else ""
    return Cause(
        "host gap",
        40 + 60 * share,
        "The device waits for the host",
        f"{us(gap)} between steps{was}, {percent(share)} of the time, step {ms(step)}",
        "The host is short of CPU: look for neighbours on its cores, and for logging at debug level.",
        "overview",
    )


def _slow_steps(window: Window) -> Cause | None:
    now, before = window.now(lambda m: m.step_ms), window.before(lambda m: m.step_ms)
    if now is None or not before or now < 1.5 * before:
        return None
    mhz, was = window.now(lambda m: m.clock_mhz), window.before(lambda m: m.clock_mhz)
    if mhz is not None and was and mhz < 0.85 * was:
        heat = f", {window.last.temp_c:.0f} °C" if window.last.temp_c is not None else ""
        return Cause(
            "clocks",
            75,
            "A GPU runs slower",
            f"SM clock {mhz:.0f} MHz (was {was:.0f}){heat}; step {ms(now)} (was {ms(before)})",
            "Power or heat limits it: see the GPUs.",
            "overview",
        )
    running, ran = window.now(lambda m: m.running), window.before(lambda m: m.running)
    rows = f" with {running:.0f} rows (were {ran:.0f})" if running is not None and ran is not None else ""
    return Cause(
        "slow steps",
        35,
        "Steps take longer",
        f"step {ms(now)} (was {ms(before)}){rows}",
        "Larger batches or longer contexts: see the batch make-up.",
        "overview",
    )


def _uneven(window: Window) -> Cause | None:
    queues = {number: e.waiting or 0 for number, e in window.last.engines.items()}
    total = sum(queues.values())
    if len(queues) < 2 or total < 8:
        return None
    number, longest = max(queues.items(), key=lambda item: item[1])
    if longest < 0.5 * total or longest < 3 * total / len(queues):
        return None
    return Cause(
        "uneven",
        60,
        "One engine has most of the queue",
        f"engine {number} holds {longest} of {total} waiting requests",
        "Its prefixes attract them, or it is slower than the others: compare the engines.",
        "overview",
    )


def _compilations(window: Window) -> Cause | None:
    now = window.last.compilations
    before = next((m.compilations for m in (*window.base, *window.recent) if m.compilations is not None), None)
    if not now or before is None or now <= before:
        return None
    return Cause(
        "compilation",
        70,
        "A kernel was compiled while serving",
        f"{now - before} compilations lately, {now} since ready (should be 0)",
        "A shape was missed at warm-up: see the kernels.",
        "kernels",
    )


def _faded(moments: Sequence[Moment], window: Window) -> Cause | None:
    """A cause that is over, while the server's latency window still holds its requests."""
    span = window.last.latency.window_s or 60.0
    for back in (RECENT_S, 2 * RECENT_S, span / 2, span):
        end = window.last.time - back
        if moments[0].time > end - GAP_S:
            return None
        past = _window(moments, end, window.slo)
        found = [cause for rule in RULES if (cause := rule(past)) is not None]
        if found:
            worst = max(found, key=lambda cause: cause.score)
            return Cause(
                "over",
                2,
                f"Over by now: {worst.title[0].lower()}{worst.title[1:]}",
                f"{back:.0f} s ago: {worst.evidence}",
                f"The latency window of {span:.0f} s still holds it; TTFT falls when it has passed.",
                worst.screen,
            )
    return None


def _unexplained(window: Window) -> Cause:
    last = window.last
    evidence = (
        f"queue {_n(last.waiting)}, pages free {percent(last.available)}, hit rate {percent(last.hit_ratio)}, "
        f"step {ms(last.step_ms)}, host gap {us(last.gap_us)}"
    )
    if not window.base:
        note = f"This console must watch for {GAP_S:.0f} s before it can compare. Until then look at single requests."
        return Cause("unknown", 1, "No calm before to compare with yet", evidence, note, "requests")
    return Cause("unknown", 1, "None of the usual causes moved", evidence, "Look at single requests.", "requests")


RULES: tuple[Callable[[Window], Cause | None], ...] = (
    _engine_down,
    _held,
    _memory,
    _queue,
    _hit_rate,
    _long_prefills,
    _host_gap,
    _slow_steps,
    _uneven,
    _compilations,
)


def _computed(moment: Moment) -> float | None:
    """Prompt tokens per second that were computed rather than found."""
    if moment.prompt_s is None:
        return None
    cached = [e.cached_s for e in moment.engines.values() if e.cached_s is not None]
    return max(0.0, moment.prompt_s - sum(cached))


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _n(value: int | None) -> str:
    return DASH if value is None else str(value)
