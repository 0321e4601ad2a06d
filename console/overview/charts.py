"""Two charts: TTFT against its target, and tokens out."""

from __future__ import annotations

from rich.text import Text

from tsd.console.draw import chart
from tsd.console.history import Frame
from tsd.console.numbers import count, ms
from tsd.console.palette import Palette
from tsd.console.shell.panel import Panel


class TtftChart(Panel):
    title = "TTFT p95"

    def lines(self, frame: Frame, width: int, height: int, palette: Palette) -> list[Text]:
        values = [m.latency.ttft_ms.p95 for m in frame.moments[-width:]]
        target = frame.snapshot.server.slo.ttft_ms if frame.snapshot else None
        top = max([v for v in values if v is not None] + [1.15 * target if target else 0.0], default=0.0)
        return chart(
            values,
            width,
            max(1, height),
            palette.accent,
            label=palette.dim,
            faint=palette.faint,
            line=target,
            over=palette.bad,
            area=palette.accent_area,
            over_area=palette.bad_area,
            names=(ms(top), f"SLO {ms(target)}" if target else ""),
        )


class OutputChart(Panel):
    title = "Tokens out per second"

    def lines(self, frame: Frame, width: int, height: int, palette: Palette) -> list[Text]:
        values = [m.output_s for m in frame.moments[-width:]]
        top = max((v for v in values if v is not None), default=0.0)
        return chart(
            values,
            width,
            max(1, height),
            palette.green,
            label=palette.dim,
            faint=palette.faint,
            area=palette.green_area,
            names=(count(top), ""),
        )
