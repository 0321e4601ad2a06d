"""Timing GPU launches inside a CUDA graph over rotating buffers. Knows nothing about what is launched."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch

ROTATED_BYTES = 256 << 20
"""Buffers in rotation add up to this, several times an H200's L2."""


def copies_for(nbytes: int) -> int:
    """How many buffers of `nbytes` to rotate over."""
    return max(2, min(64, -(-ROTATED_BYTES // max(1, nbytes))))


def graph_of(launches: Sequence[Callable[[], object]]) -> torch.cuda.CUDAGraph:
    """The launches, once each and in order, as one graph. They must have run before (compiled, scratch allocated)."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in launches:
            launch()
    return graph


def microseconds(launches: Sequence[Callable[[], object]], replays: int = 7, fill: int = 24) -> float:
    """Median time of one launch in a graph of at least `fill` launches."""
    for launch in launches[:2]:
        launch()
    torch.cuda.synchronize()
    sequence = list(launches) * max(1, -(-fill // len(launches)))
    graph = graph_of(sequence)
    times = []
    for _ in range(replays + 2):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times[2:]) * 1e3 / len(sequence)
