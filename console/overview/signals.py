"""Latency percentiles and load, each with its recent course."""

from __future__ import annotations

from collections.abc import Callable

from rich.text import Text

from tsd.console.draw import ink, spark
from tsd.console.history import Frame
from tsd.console.moment import Moment
from tsd.console.numbers import count, ms, percent
from tsd.console.palette import Palette
from tsd.console.shell.panel import Panel, set_titles

Pick = Callable[[Moment], float | None]


class Signals(Panel):
    title = "Latency and load"

    def lines(self, frame: Frame, width: int, height: int, palette: Palette) -> list[Text]:
        if frame.snapshot is None:
            return []
        server = frame.snapshot.server
        window = server.latency.window_s
        set_titles(self, self.title, f"last {window:.0f} s" if window else "")
        lines = [ink(f"{'':6}{'p50':>9}{'p95':>9}{'p99':>9}", palette.header)]
        room = max(6, width - 35)
        for name, values, target, style, pick in (
            ("TTFT", server.latency.ttft_ms, server.slo.ttft_ms, palette.accent, lambda m: m.latency.ttft_ms.p95),
            ("TPOT", server.latency.tpot_ms, server.slo.tpot_ms, palette.blue, lambda m: m.latency.tpot_ms.p95),
            ("queue", server.latency.queue_ms, None, palette.pink, lambda m: m.latency.queue_ms.p95),
            ("whole", server.latency.e2e_ms, None, palette.dim, lambda m: m.latency.e2e_ms.p95),
        ):
            line = ink(f"{name:<6}", palette.strong)
            for value in (values.p50, values.p95, values.p99):
                missed = target is not None and value is not None and value > target
                line.append(f"{ms(value):>9}", f"bold {palette.bad}" if missed else palette.text)
            lines.append(line.append("  ").append_text(spark([pick(m) for m in frame.moments[-room:]], room, style)))
        moment = frame.moment
        if moment is not None:
            load: tuple[tuple[str, str, str, Pick], ...] = (
                ("in", f"{count(moment.prompt_s)} tok/s", palette.blue, lambda m: m.prompt_s),
                ("out", f"{count(moment.output_s)} tok/s", palette.green, lambda m: m.output_s),
                ("hits", f"{percent(moment.hit_ratio)} of prompt", palette.green, lambda m: m.hit_ratio),
                ("wait", f"{count(moment.waiting)} waiting", palette.pink, lambda m: m.waiting),
            )
            for name, words, style, pick in load:
                line = ink(f"{name:<6}", palette.strong).append(f"{words:>18}", palette.text)
                line.append(f"{_beside(name, moment):>9}", palette.dim)
                top = 1.0 if name == "hits" else None
                lines.append(
                    line.append("  ").append_text(spark([pick(m) for m in frame.moments[-room:]], room, style, top))
                )
        lines.append(_slo(frame, palette))
        return lines


def _beside(name: str, moment: Moment) -> str:
    """What stands beside a load's rate."""
    if name == "in":
        return f"{_rate(moment.arrivals_s)} new"
    if name == "out":
        return f"{_rate(moment.finished_s)} done"
    if name == "wait":
        return f"{count(moment.running)} run"
    return ""


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}/s"


def _slo(frame: Frame, palette: Palette) -> Text:
    assert frame.snapshot is not None
    server = frame.snapshot.server
    text = ink("SLO   ", palette.strong)
    for name, value, target in (
        ("TTFT", server.latency.ttft_ms.p95, server.slo.ttft_ms),
        ("TPOT", server.latency.tpot_ms.p95, server.slo.tpot_ms),
    ):
        if target is None:
            text.append(f"{name} no target   ", palette.dim)
        elif value is None:
            text.append(f"○ {name} ≤ {ms(target)}   ", palette.dim)
        elif value <= target:
            text.append(f"● {name} ≤ {ms(target)}   ", palette.ok)
        else:
            text.append(f"■ {name} ≤ {ms(target)} missed   ", palette.bad)
    return text
