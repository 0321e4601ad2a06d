"""Confidence intervals for ratios of two runs, by resampling requests with replacement. Knows nothing about files.

The percentile bootstrap (Efron 1979) over requests: each run's requests are drawn anew, the statistic is taken of each
draw, and the interval holds the middle of the ratios. It covers the spread between requests of one run, not drift of
the machine between runs: only repeated runs show that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Statistic = Callable[[np.ndarray], np.ndarray]
"""Of an array [draws, requests, columns] the statistic of each draw, [draws]."""

_CHUNK = 4_000_000  # elements drawn at once, to bound memory


class Ratio(NamedTuple):
    """`value` is b/a; `low` and `high` are None with fewer than two samples on a side."""

    value: float
    low: float | None
    high: float | None

    @property
    def clear(self) -> bool:
        """The interval leaves out 1."""
        return self.low is not None and self.high is not None and (self.low > 1 or self.high < 1)


def percentile_of(percentile: float) -> Statistic:
    """That percentile of the first column."""
    return lambda draws: np.percentile(draws[:, :, 0], percentile, axis=1)


def rate_of() -> Statistic:
    """Sum of the first column over the sum of the second: tokens over seconds spent in requests. In a closed loop the
    throughput is this times the concurrency (Little's law), so that ratios of both agree."""
    return lambda draws: draws[:, :, 0].sum(axis=1) / draws[:, :, 1].sum(axis=1)


def _draws(samples: np.ndarray, statistic: Statistic, resamples: int, source: np.random.Generator) -> np.ndarray:
    size = samples.shape[0]
    step = max(1, _CHUNK // max(1, samples.size))
    parts = []
    for done in range(0, resamples, step):
        picks = source.integers(0, size, (min(step, resamples - done), size))
        parts.append(statistic(samples[picks]))
    return np.concatenate(parts)


def ratio(
    a: np.ndarray,
    b: np.ndarray,
    statistic: Statistic,
    measured: float,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Ratio:
    """Interval of statistic(b)/statistic(a); a and b are [requests, columns]. `measured` is the ratio to report.

    The interval is that of the statistic's ratio, moved to the measured one (they differ only for throughput).
    """
    if a.shape[0] < 2 or b.shape[0] < 2:
        return Ratio(measured, None, None)
    source = np.random.default_rng(seed)
    below, above = _draws(a, statistic, resamples, source), _draws(b, statistic, resamples, source)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = above / below
    ratios = ratios[np.isfinite(ratios)]
    point_a, point_b = statistic(a[np.newaxis])[0], statistic(b[np.newaxis])[0]
    if ratios.size == 0 or point_a == 0 or point_b == 0:
        return Ratio(measured, None, None)
    shift = measured / (point_b / point_a)
    edge = (1 - confidence) / 2 * 100
    low, high = np.percentile(ratios, [edge, 100 - edge]) * shift
    return Ratio(measured, float(low), float(high))
