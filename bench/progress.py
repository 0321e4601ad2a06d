"""The live view of a run: a bar with rates and percentiles so far on a terminal, plain lines elsewhere.

Runs in the coordinator, never in a client process: drawing must not delay a measurement.
"""

from __future__ import annotations

import asyncio
from time import perf_counter

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tsd.bench.coordinator import Coordinator
from tsd.bench.record import RequestRecord

_LIVE_PERIOD_S = 0.5
_PLAIN_PERIOD_S = 10.0
_RECENT = 2000


class ProgressView:
    """Collects records as they come; `show` draws until cancelled."""

    def __init__(self, console: Console, name: str, total: int, enabled: bool) -> None:
        self._console, self._name, self._total, self._enabled = console, name, total, enabled
        self._ttft: list[float] = []
        self._tpot: list[float] = []
        self._done = self._failed = self._tokens = 0

    def record(self, record: RequestRecord) -> None:
        self._done += 1
        self._failed += not record.ok
        self._tokens += record.output_tokens
        if record.ok and record.ttft is not None:
            self._ttft.append(record.ttft * 1e3)
        if record.ok and record.tpot is not None:
            self._tpot.append(record.tpot * 1e3)

    def _figures(self, chunks_per_s: float, in_flight: int) -> str:
        parts = [f"{in_flight} in flight", f"{chunks_per_s:,.0f} chunk/s"]
        for name, values in (("TTFT", self._ttft), ("TPOT", self._tpot)):
            if values:
                p50, p99 = np.percentile(values[-_RECENT:], [50, 99])
                parts.append(f"{name} p50 {p50:,.1f} p99 {p99:,.1f} ms")
        if self._failed:
            parts.append(f"{self._failed} failed")
        return " · ".join(parts)

    async def show(self, coordinator: Coordinator) -> None:
        if not self._enabled:
            return
        if self._console.is_terminal:
            await self._show_live(coordinator)
        else:
            await self._show_plain(coordinator)

    async def _show_live(self, coordinator: Coordinator) -> None:
        columns = (
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[figures]}"),
        )
        with Progress(*columns, console=self._console, auto_refresh=False, transient=True) as progress:
            task = progress.add_task(self._name, total=self._total, figures="starting")
            meter = _Meter()
            while True:
                await asyncio.sleep(_LIVE_PERIOD_S)
                figures = self._figures(meter.rate(coordinator), sum(coordinator.live.in_flight.values()))
                progress.update(task, completed=self._done, figures=figures)
                progress.refresh()

    async def _show_plain(self, coordinator: Coordinator) -> None:
        meter = _Meter()
        while True:
            await asyncio.sleep(_PLAIN_PERIOD_S)
            figures = self._figures(meter.rate(coordinator), sum(coordinator.live.in_flight.values()))
            self._console.print(f"{self._name} {self._done}/{self._total} · {figures}", highlight=False, soft_wrap=True)


class _Meter:
    """Chunks a second since the last look."""

    def __init__(self) -> None:
        self._chunks, self._at = 0, perf_counter()

    def rate(self, coordinator: Coordinator) -> float:
        chunks, now = sum(coordinator.live.chunks.values()), perf_counter()
        rate = (chunks - self._chunks) / max(1e-3, now - self._at)
        self._chunks, self._at = chunks, now
        return rate
