"""Sparklines, bars and charts as Rich text. Pure functions of numbers, widths and styles."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from tsd.console.numbers import DASH


def ink(text: str, style: str = "") -> Text:
    """`text` in `style`, without passing the style on to what is appended, as `Text(text, style)` would."""
    return Text().append(text, style)


EIGHTHS = " ▁▂▃▄▅▆▇█"


def spark(values: Sequence[float | None], width: int, style: str, top: float | None = None) -> Text:
    """The newest `width` values as one row of blocks, newest at the right, scaled from 0 to `top` (or the largest).

    The highest block leaves a gap, so that rows above each other stay apart.
    """
    shown = values[-width:]
    most = top or max((v for v in shown if v is not None), default=0.0)
    cells = [_eighth(v, most) for v in shown]
    return ink("".join(cells).rjust(width), style)


def _eighth(value: float | None, most: float) -> str:
    if value is None:
        return " "
    if most <= 0 or value <= 0:
        return EIGHTHS[1]
    return EIGHTHS[max(1, min(7, round(7 * value / most)))]


def bar(share: float | None, width: int, style: str, rest: str) -> Text:
    """A horizontal bar filled to `share` (0..1), to half a cell; anything above 0 shows."""
    if share is None:
        return ink(DASH.ljust(width), rest)
    halves = round(max(0.0, min(1.0, share)) * width * 2)
    halves = max(halves, 1 if share > 0 else 0)
    full, half = divmod(halves, 2)
    text = ink("━" * full + "╸" * half, style)
    return text.append("─" * (width - len(text)), rest)


def chart(
    values: Sequence[float | None],
    width: int,
    height: int,
    style: str,
    *,
    label: str,
    faint: str,
    line: float | None = None,
    over: str = "",
    area: str = "",
    over_area: str = "",
    names: tuple[str, str] = ("", ""),
) -> list[Text]:
    """A column chart of the newest values, `height` rows, with an axis of `names` (its top, and the line's name).

    A column's top takes `style` and its body `area`; one above `line` takes `over` and `over_area`. The line itself is
    dashed where no column covers it.
    """
    axis = max(len(names[0]), len(names[1]), 1) + 2
    columns = max(1, width - axis)
    newest = values[-columns:]
    shown: list[float | None] = [*([None] * (columns - len(newest))), *newest]
    most = max([v for v in shown if v is not None] + [1.15 * line if line else 0.0, 1e-9])
    level = int(line / most * height) if line else -1
    rows: list[Text] = []
    for row in range(height - 1, -1, -1):
        name = names[0] if row == height - 1 else names[1] if row == level else "0" if row == 0 else ""
        text = ink(f"{name:>{axis - 2}}", label)
        text.append(" ┤" if name else " │", faint)
        for value in shown:
            rest = 0 if value is None else round((value / most * height - row) * 8)
            if rest > 0:
                above = line is not None and value is not None and value > line
                edge, body = (over or style, over_area or over or style) if above else (style, area or style)
                text.append(EIGHTHS[min(8, rest)], edge if rest <= 8 else body)
            elif row == level:
                text.append("╌", label)
            elif row == 0 and value is not None:
                text.append("▁", style)
            else:
                text.append(" ")
        rows.append(text)
    return rows
