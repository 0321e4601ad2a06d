"""A front's figures as plain values that travel between processes and add up. Knows no Prometheus.

Counters and histograms of several fronts are summed exactly. Percentiles over fronts come from sketches: the sorted
values where they are few, else evenly spaced quantiles, each standing for its share.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

import msgspec

SKETCH_POINTS = 512
_SHARES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))


class Histogram(msgspec.Struct, array_like=True):
    """Counts per bucket, the last one without an upper bound. `observe` is some 200 ns."""

    bounds: tuple[float, ...]
    counts: list[int]
    total: float = 0.0

    @classmethod
    def empty(cls, bounds: tuple[float, ...]) -> Histogram:
        return cls(bounds, [0] * (len(bounds) + 1))

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def buckets(self) -> list[tuple[str, float]]:
        bounds = [*(f"{bound:g}" for bound in self.bounds), "+Inf"]
        return list(zip(bounds, map(float, accumulate(self.counts)), strict=True))


class EngineLoad(msgspec.Struct, array_like=True):
    """What fronts have given one engine."""

    engine: int
    requests: int = 0
    waiting: int = 0
    queued_tokens: int = 0


class FrontFigures(msgspec.Struct):
    """Everything that one front counted since its start, or the sum over fronts."""

    requests: int = 0
    streams_open: int = 0
    jobs: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    cached_tokens: int = 0
    finished_by: dict[str, int] = {}
    http: list[tuple[str, int, int]] = []
    """(route, status, count)."""
    histograms: dict[str, Histogram] = {}
    loads: list[EngineLoad] = []


def add_up(all_figures: Sequence[FrontFigures]) -> FrontFigures:
    """The sum. Fronts of one server have the same histograms, with the same bounds."""
    first, *others = all_figures
    if not others:
        return first
    finished: Counter[str] = Counter()
    http: Counter[tuple[str, int]] = Counter()
    loads: dict[int, EngineLoad] = {}
    for figures in all_figures:
        finished.update(figures.finished_by)
        for route, status, count in figures.http:
            http[route, status] += count
        for load in figures.loads:
            known = loads.setdefault(load.engine, EngineLoad(load.engine))
            known.requests += load.requests
            known.waiting += load.waiting
            known.queued_tokens += load.queued_tokens
    return FrontFigures(
        requests=sum(figures.requests for figures in all_figures),
        streams_open=sum(figures.streams_open for figures in all_figures),
        jobs=sum(figures.jobs for figures in all_figures),
        prompt_tokens=sum(figures.prompt_tokens for figures in all_figures),
        generation_tokens=sum(figures.generation_tokens for figures in all_figures),
        cached_tokens=sum(figures.cached_tokens for figures in all_figures),
        finished_by=dict(finished),
        http=[(route, status, count) for (route, status), count in http.items()],
        histograms={name: _added([f.histograms[name] for f in all_figures]) for name in first.histograms},
        loads=list(loads.values()),
    )


def _added(histograms: list[Histogram]) -> Histogram:
    counts = [sum(column) for column in zip(*(h.counts for h in histograms), strict=True)]
    return Histogram(histograms[0].bounds, counts, sum(h.total for h in histograms))


class Sketch(msgspec.Struct, array_like=True):
    """`count` values, of which `points` are kept, sorted: each stands for count / len(points) of them."""

    count: int
    points: list[float]

    @classmethod
    def of(cls, values: list[float]) -> Sketch:
        ordered = sorted(values)
        count = len(ordered)
        if count > SKETCH_POINTS:
            last = SKETCH_POINTS - 1
            ordered = [ordered[round(i * (count - 1) / last)] for i in range(SKETCH_POINTS)]
        return cls(count, ordered)


def percentiles(sketches: Sequence[Sketch]) -> dict[str, float] | None:
    """p50, p95 and p99 of all values together; None without any."""
    weighted = sorted((point, s.count / len(s.points)) for s in sketches if s.points for point in s.points)
    if not weighted:
        return None
    sums = list(accumulate(weight for _, weight in weighted))
    found = {}
    for name, share in _SHARES:
        # The value whose share of the weight, taken at its middle, is nearest: exact for unweighted values.
        target = share * (sums[-1] - weighted[-1][1])
        found[name] = weighted[min(len(weighted) - 1, bisect_left(sums, target + weighted[0][1] / 2))][0]
    return found
