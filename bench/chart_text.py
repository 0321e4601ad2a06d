"""A chart in a terminal: lines of braille dots (2 × 4 to a cell), one colour a line."""

from __future__ import annotations

import itertools

from rich.text import Text

from tsd.bench.chart import Chart, Scale, scales, tick_label

COLOURS = ("cyan", "magenta", "yellow", "green", "red", "blue")
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # bit of a dot by column and row of its cell


class _Canvas:
    """Dots on a grid of cells; a cell takes the colour of the last line that touched it."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.bits = [[0] * columns for _ in range(rows)]
        self.owner = [[-1] * columns for _ in range(rows)]

    def dot(self, x: float, y: float, owner: int) -> None:
        """x, y in 0…1, y upwards."""
        column = min(self.columns * 2 - 1, max(0, round(x * (self.columns * 2 - 1))))
        row = min(self.rows * 4 - 1, max(0, round((1 - y) * (self.rows * 4 - 1))))
        self.bits[row // 4][column // 2] |= _DOTS[column % 2][row % 4]
        self.owner[row // 4][column // 2] = owner

    def line(self, x0: float, y0: float, x1: float, y1: float, owner: int) -> None:
        steps = max(1, round(max(abs(x1 - x0) * self.columns * 2, abs(y1 - y0) * self.rows * 4)))
        for step in range(steps + 1):
            part = step / steps
            self.dot(x0 + (x1 - x0) * part, y0 + (y1 - y0) * part, owner)


def render(chart: Chart, columns: int = 60, rows: int = 12) -> Text:
    """Title, plot with y ticks at the left, x ticks below, and a legend."""
    x_scale, y_scale = scales(chart)
    canvas = _Canvas(columns, rows)
    for owner, line in enumerate(chart.lines):
        placed = [(x_scale.place(p.x), y_scale.place(p.y)) for p in line.points]
        for (x0, y0), (x1, y1) in itertools.pairwise(placed):
            canvas.line(x0, y0, x1, y1, owner)
        for x, y in placed:
            canvas.dot(x, y, owner)
    labels = {round((1 - y_scale.place(value)) * (rows - 1)): tick_label(value) for value in y_scale.ticks(4)}
    width = max((len(label) for label in labels.values()), default=1)
    text = Text(f"{chart.title}   ({chart.y_label} over {chart.x_label})\n", style="bold")
    for row in range(rows):
        text.append(f"{labels.get(row, ''):>{width}} {'┤' if row in labels else '│'}", style="dim")
        for column in range(columns):
            owner = canvas.owner[row][column]
            style = COLOURS[owner % len(COLOURS)] if owner >= 0 else ""
            text.append(chr(0x2800 + canvas.bits[row][column]), style=style)
        text.append("\n")
    text.append(f"{'':>{width}} └{'─' * columns}\n", style="dim")
    text.append(f"{'':>{width}}  {_x_axis(chart, x_scale, columns)}\n", style="dim")
    for owner, line in enumerate(chart.lines):
        text.append(f"{'':>{width}}  ")
        text.append("━━ ", style=COLOURS[owner % len(COLOURS)])
        text.append(f"{line.name}\n")
    return text


def _x_axis(chart: Chart, scale: Scale, columns: int) -> str:
    axis = [" "] * (columns + 8)
    ticks = chart.ticks_x or [(value, tick_label(value)) for value in scale.ticks(6)]
    free_from = 0
    for value, label in ticks:
        at = max(0, round(scale.place(value) * (columns - 1)) - len(label) // 2)
        if at >= free_from and at + len(label) <= len(axis):
            axis[at : at + len(label)] = label
            free_from = at + len(label) + 1
    return "".join(axis).rstrip()
