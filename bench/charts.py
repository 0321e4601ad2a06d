"""The charts of a comparison: latency percentiles of each run, and the Pareto curve of a sweep."""

from __future__ import annotations

import numpy as np

from tsd.bench.chart import Chart, Line, Point
from tsd.bench.result import Result
from tsd.bench.series import Series, latency_samples, load_key, per_gpu, per_user

# A percentile p is drawn at log10(1/(1−p)), so that the tail has as much room as the middle.
_PERCENTILES = (0, 10, 25, 50, 75, 90, 95, 99, 99.9)
_TITLES = {"ttft": "Time to first token", "tpot": "Time per output token", "e2el": "End-to-end latency"}


def _tail(percentile: float) -> float:
    return float(-np.log10(1 - percentile / 100))


def percentile_chart(metric: str, named: list[tuple[str, Result]], load: str) -> Chart:
    """Latency over percentile; percentiles beyond what the number of requests supports are left out."""
    lines = []
    for name, run in named:
        samples = latency_samples(run, metric)[:, 0]
        shown = [p for p in _PERCENTILES if samples.size and samples.size * (1 - p / 100) >= 1]
        lines.append(Line(name, [Point(_tail(p), float(np.percentile(samples, p))) for p in shown]))
    most = max((point.x for line in lines for point in line.points), default=1.0)
    ticks = [(_tail(p), f"p{p:g}") for p in _PERCENTILES if p >= 50 and _tail(p) <= most + 1e-9]
    return Chart(f"{_TITLES[metric]}, {load}", "percentile", "ms", lines, ticks_x=[(0.0, "min"), *ticks])


def pareto_chart(series: list[Series], data: str) -> Chart:
    """Output tokens a second and GPU over tokens a second and user, one point a load of the sweep."""
    lines = []
    for one in series:
        runs = [run for run in one.runs if load_key(run)[0] == data and per_user(run) > 0]
        points = [Point(per_user(run), per_gpu(run), load_key(run)[1].split()[0]) for run in runs]
        lines.append(Line(one.name, sorted(points), marks=True))
    return Chart(f"Throughput against speed for one user, {data}", "tok/s a user", "tok/s a GPU", lines)


def charts_of(series: list[Series]) -> list[Chart]:
    """Percentiles for each load that a series holds; Pareto for each data set that was swept."""
    charts = []
    keys = list(dict.fromkeys(load_key(run) for one in series for run in one.runs))
    for data in dict.fromkeys(key[0] for key in keys):
        if sum(key[0] == data for key in keys) >= 2:
            charts.append(pareto_chart(series, data))
    for key in keys:
        named = [(one.name, run) for one in series for run in one.runs if load_key(run) == key]
        for metric in ("ttft", "tpot"):
            charts.append(percentile_chart(metric, named, " ".join(key)))
    return [chart for chart in charts if not chart.empty]
