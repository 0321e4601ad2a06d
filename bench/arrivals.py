"""When requests leave in an open loop: seconds after the start, drawn once from a seed.

Knows nothing about requests.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Ramp:
    """The rate moves from `start_rps` to `end_rps` over the run, request by request,
    by equal steps or by equal factors."""

    strategy: Literal["linear", "exponential"]
    start_rps: float
    end_rps: float

    def rate(self, progress: float) -> float:
        """Requests a second when `progress` (0 to 1) of the requests have left."""
        if self.strategy == "linear":
            return self.start_rps + (self.end_rps - self.start_rps) * progress
        return self.start_rps * (self.end_rps / self.start_rps) ** progress


def offsets(count: int, rate: float | Ramp, burstiness: float, seed: int) -> list[float]:
    """Gaps are gamma-distributed with shape `burstiness` and mean 1/rate: 1 is a Poisson process, below it burstier,
    above it more even. A constant infinite rate sends all at once. The first request leaves at 0."""
    source = random.Random(f"{seed}:arrivals")

    def walk() -> Iterator[float]:
        at = 0.0
        for number in range(count):
            yield at
            now = rate.rate(number / max(1, count - 1)) if isinstance(rate, Ramp) else rate
            if now != float("inf"):
                at += source.gammavariate(burstiness, 1.0 / (now * burstiness))

    return list(walk())
