"""What a heartbeat tells the front's metrics: counters and gauges under the names they are exposed by.

Knows nothing about Prometheus. `iteration_tokens_total/<le>` counts the steps whose tokens fall into that bucket and
not a smaller one; `iteration_tokens_total/sum` is the tokens of all steps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

STEP_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_STEP_TOKENS_NAME = "iteration_tokens_total"
_RENAMED = {"hit_queries": "prefix_cache_queries", "retractions": "num_retractions"}
_USED_STATES = ("active", "shared", "fenced", "in_flight")


class StepTokens:
    """How many tokens each launched step held, as a histogram. `observe` is on the step loop's path."""

    __slots__ = ("_counts", "_sum")

    def __init__(self) -> None:
        self._counts = [0] * (len(STEP_TOKENS) + 1)
        self._sum = 0

    def observe(self, tokens: int) -> None:
        self._counts[bisect_left(STEP_TOKENS, tokens)] += 1
        self._sum += tokens

    def stats(self) -> dict[str, float]:
        edges = [*map(str, STEP_TOKENS), "+Inf"]
        named = {f"{_STEP_TOKENS_NAME}/{edge}": float(count) for edge, count in zip(edges, self._counts, strict=True)}
        return {**named, f"{_STEP_TOKENS_NAME}/sum": float(self._sum)}


def heartbeat_stats(view: Mapping[str, Any], compilations: int) -> dict[str, float]:
    """From the scheduler's snapshot: its counters, prefix-cache tokens, and the share of pages that requests hold."""
    counters = view["counters"]
    stats = {_RENAMED.get(name, name): float(value) for name, value in counters.items()}
    stats["prefix_cache_hits"] = float(sum(counters.get(f"hit_{tier}", 0) for tier in ("device", "host", "disk")))
    pages = view["tiers"]["device"]
    used = sum(pages.get(state, 0) for state in _USED_STATES)
    stats["kv_cache_usage_perc"] = used / pages["total"] if pages.get("total") else 0.0
    stats["retracted"] = float(view.get("retracted", 0))
    stats["compilations_after_ready"] = float(compilations)
    return stats
