"""Why is TTFT up? The verdict and its causes, worst first."""

from __future__ import annotations

from rich.text import Text

from tsd.console.draw import ink
from tsd.console.history import Frame
from tsd.console.palette import LEVEL_GLYPHS, Palette
from tsd.console.shell.panel import Panel, wrap

GOES_TO = {"overview": "1", "pages": "2", "requests": "3", "events": "4", "kernels": "5"}


class Why(Panel):
    title = "Why is TTFT up?"

    def lines(self, frame: Frame, width: int, height: int, palette: Palette) -> list[Text]:
        found = frame.explanation
        style = palette.level(found.level)
        head = wrap(f"{LEVEL_GLYPHS[found.level]} {found.headline}", width, f"bold {style}")
        lines = [*head]
        for place, cause in enumerate(found.causes[:3], 1):
            title = ink(f"{place} {cause.title}", palette.strong)
            title.append(f"  → {GOES_TO[cause.screen]}", palette.accent)
            lines.append(title)
            lines += wrap(cause.evidence, width, palette.text, "  ")
            if place == 1:
                lines += wrap(cause.advice, width, palette.dim, "  ")
        if not found.causes:
            lines.append(ink("  Nothing else calls for a look.", palette.dim))
        return lines
