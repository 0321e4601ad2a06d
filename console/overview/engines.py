"""One line an engine: what runs and waits, tokens, step, batch, host gap, KV."""

from __future__ import annotations

from rich.text import Text

from tsd.console.draw import bar, ink
from tsd.console.history import Frame
from tsd.console.moment import EngineMoment
from tsd.console.numbers import DASH, count, ms, percent, us
from tsd.console.palette import Palette
from tsd.console.shell.panel import Panel
from tsd.console.snapshot import Engine


class Engines(Panel):
    title = "Engines"

    def lines(self, frame: Frame, width: int, height: int, palette: Palette) -> list[Text]:
        engines = frame.snapshot.engines if frame.snapshot else ()
        if not engines:
            return [ink("No engine reports.", palette.dim)]
        chosen = frame.engine
        # (title, width, right-aligned, least panel width at which it is shown)
        columns = [c for c in COLUMNS if width >= c[3]]
        used = sum(abs(c[1]) + 1 for c in columns)
        room = max(6, min(60, width - used - 8))
        head = ink("  ")
        for title, size, right, _ in columns:
            head.append((title.rjust(size) if right else title.ljust(size)) + " ", palette.header)
        head.append("KV pages in use", palette.header)
        lines = [head]
        for engine in engines:
            moment = frame.engine_moment(engine.engine)
            values = cells(engine, moment, palette)
            line = ink("▸ " if engine is chosen and len(engines) > 1 else "  ", palette.accent)
            for title, size, right, _ in columns:
                value, style = values[title]
                value = value[:size]
                line.append((value.rjust(size) if right else value.ljust(size)) + " ", style)
            available = moment.available
            used_share = None if available is None else 1 - available
            tight = available is not None and available < 0.05
            style = palette.bad if tight else palette.accent
            line.append_text(bar(used_share, room, style, palette.faint))
            line.append(f" {percent(used_share):>4}", f"bold {palette.bad}" if tight else palette.text)
            lines.append(line)
        return lines


COLUMNS = (
    ("#", 2, False, 0),
    ("device", 7, False, 100),
    ("state", 8, False, 0),
    ("run", 4, True, 0),
    ("wait", 4, True, 0),
    ("retr", 4, True, 0),
    ("in/s", 6, True, 0),
    ("out/s", 6, True, 0),
    ("hits", 4, True, 110),
    ("step p50", 8, True, 0),
    ("p99", 8, True, 120),
    ("gap p50", 8, True, 90),
    ("batch", 16, False, 130),
)


def cells(engine: Engine, moment: EngineMoment, palette: Palette) -> dict[str, tuple[str, str]]:
    """Value and style by column title."""
    batch = engine.batch
    parts = (batch.prefill_rows, batch.decode_rows, batch.padding)
    make_up = "/".join(DASH if n is None else str(n) for n in parts)
    gap = engine.host_gap_us.p50
    late = gap is not None and engine.step_ms.p50 and gap > 150 * engine.step_ms.p50
    return {
        "#": (str(engine.engine), palette.strong),
        "device": (engine.device or DASH, palette.text),
        "state": (engine.state or DASH, palette.state(engine.state)),
        "run": (count(engine.running), palette.text),
        "wait": (count(engine.waiting), palette.warn if engine.waiting else palette.text),
        "retr": (count(engine.retracted), palette.bad if engine.retracted else palette.text),
        "in/s": (count(moment.prompt_s), palette.text),
        "out/s": (count(moment.output_s), palette.text),
        "hits": (percent(moment.hit_ratio), palette.text),
        "step p50": (ms(engine.step_ms.p50), palette.text),
        "p99": (ms(engine.step_ms.p99), palette.dim),
        "gap p50": (us(gap), palette.bad if late else palette.text),
        "batch": (f"{make_up} p/d/idle", palette.dim),
    }
