"""A line chart as data, its scales and ticks. Rendered as text by `chart_text` and as SVG by `chart_svg`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple


class Point(NamedTuple):
    """`note` is shown where a renderer can (a concurrency, say)."""

    x: float
    y: float
    note: str = ""


@dataclass(frozen=True)
class Line:
    """`marks`: draw the points, not only the line between them."""

    name: str
    points: list[Point]
    marks: bool = False


@dataclass(frozen=True)
class Chart:
    """Lines over linear or logarithmic axes. `ticks_x` overrides the places of the x ticks: (value, label)."""

    title: str
    x_label: str
    y_label: str
    lines: list[Line]
    log_x: bool = False
    log_y: bool = False
    ticks_x: list[tuple[float, str]] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        return not any(line.points for line in self.lines)


@dataclass(frozen=True)
class Scale:
    """Maps values of an axis to 0…1."""

    low: float
    high: float
    log: bool

    @classmethod
    def over(cls, values: list[float], log: bool) -> Scale:
        """Covers all values; a linear axis starts at zero when the values are near it."""
        usable = [value for value in values if value > 0] if log else values
        if not usable:
            return cls(0.1, 1.0, log)
        low, high = min(usable), max(usable)
        if log:
            return cls(low, high if high > low else low * 2, True)
        if 0 <= low < 0.5 * high:
            low = 0.0
        return cls(low, high if high > low else low + 1.0, False)

    def place(self, value: float) -> float:
        if self.log:
            value = max(value, self.low)
            return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return (value - self.low) / (self.high - self.low)

    def ticks(self, about: int = 5) -> list[float]:
        """Round values inside the scale."""
        if self.log:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            steps = (1, 2, 5) if len(decades) <= 3 else (1,)
            values = [step * 10.0**decade for decade in decades for step in steps]
        else:
            raw = (self.high - self.low) / max(1, about)
            size = 10.0 ** math.floor(math.log10(raw))
            step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= raw * 0.999)
            first = math.ceil(self.low / step - 1e-9)
            values = [i * step for i in range(first, math.floor(self.high / step + 1e-9) + 1)]
        return [value for value in values if self.low * (1 - 1e-9) <= value <= self.high * (1 + 1e-9)]


def scales(chart: Chart) -> tuple[Scale, Scale]:
    """x and y over all points."""
    points = [point for line in chart.lines for point in line.points]
    return Scale.over([p.x for p in points], chart.log_x), Scale.over([p.y for p in points], chart.log_y)


def tick_label(value: float) -> str:
    """Short: 12k, 3.5, 0.02."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if abs(value) >= 10_000 else f"{value:g}"
