"""CUDA graphs of whole decode steps, one for each bucket of rows.

A graph holds everything from the page-table changes to the feed of the next step's input token; replaying it is one
launch. Rows that a step does not fill name the padding slot. All graphs share one memory pool, captured from the
largest to the smallest.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

import torch

from tsd.engine.executor.wake import Landing


def buckets_for(max_rows: int) -> list[int]:
    """1, 2, 4, 8, then every 8 up to 64, every 16 up to 128, every 32 above, and `max_rows` itself."""
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 128, 16), *range(128, max_rows + 1, 32)]
    return sorted({size for size in sizes if size < max_rows} | {max_rows})


@dataclass
class CapturedStep:
    graph: torch.cuda.CUDAGraph
    rows: int
    output: torch.Tensor
    """Tokens [rows] of a greedy graph, logits [rows, V] of a forward-only one."""

    @cached_property
    def handle(self) -> int:
        """The driver's name for it, a CUgraphExec; 0 where torch does not tell."""
        return int(self.graph.raw_cuda_graph_exec()) if hasattr(self.graph, "raw_cuda_graph_exec") else 0

    def replay(self, landing: Landing) -> None:
        """Queues it on the landing's stream, which must be the current one."""
        if self.handle:
            landing.launch(self.handle)
        else:
            self.graph.replay()


def record(
    body: Callable[[], torch.Tensor], stream: torch.cuda.Stream, pool: Any
) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    """The launches of `body` as a graph on the device, and its output. Queues nothing and does not wait.

    `torch.cuda.graph` would wait for the device and hand its unused memory back, each time.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        if pool is None:
            graph.capture_begin()
        else:
            graph.capture_begin(pool)
        try:
            output = body()
        finally:
            graph.capture_end()
        upload(graph, stream)
    return graph, output


def upload(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream) -> None:
    """Puts a graph on the device: better now than under the first request of its size."""
    if not hasattr(graph, "raw_cuda_graph_exec"):
        graph.replay()  # older torch does not tell its handle; a replay uploads too
        return
    handle = ctypes.c_void_p(graph.raw_cuda_graph_exec())
    if code := _driver().cuGraphUpload(handle, ctypes.c_void_p(stream.cuda_stream)):
        raise RuntimeError(f"cuGraphUpload failed with CUDA error {code}")


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


class StepGraphs:
    """Graphs by bucket. `body(rows)` queues a step of that many rows and returns its output tensor."""

    def __init__(self, buckets: list[int], stream: torch.cuda.Stream, landing: Landing) -> None:
        self.buckets = buckets
        self.captured: dict[int, CapturedStep] = {}
        self._stream = stream
        self._landing = landing
        self.pool: Any = None

    def bucket(self, rows: int) -> int | None:
        """The smallest bucket that holds `rows`, or None."""
        place = bisect_left(self.buckets, rows)
        return self.buckets[place] if place < len(self.buckets) else None

    def capture(self, body: Callable[[int], torch.Tensor], report: Callable[[int, int], None]) -> None:
        """Records `body` for each bucket, with nothing run. Every kernel must have run before at each bucket's size."""
        for done, rows in enumerate(sorted(self.buckets, reverse=True)):
            graph, output = record(partial(body, rows), self._stream, self.pool)
            self.pool = self.pool or graph.pool()
            self.captured[rows] = CapturedStep(graph, rows, output)
            report(done + 1, len(self.buckets))

    def replay(self, rows: int) -> torch.Tensor:
        step = self.captured[rows]
        step.replay(self._landing)
        return step.output
