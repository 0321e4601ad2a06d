"""Charts as one PNG image: drawn at three times the size and averaged down, so that lines are smooth."""

from __future__ import annotations

import itertools
import struct
import zlib
from typing import Literal

import numpy as np

from tsd.bench.chart import Chart, scales, tick_label
from tsd.bench.chart_svg import COLOURS
from tsd.bench.stroke_font import ADVANCE as _ADVANCE
from tsd.bench.stroke_font import HEIGHT, strokes, text_width

_WIDTH, _HEIGHT = 640, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 20, 44, 46
_SAMPLES = 3
_INK, _GRID = (40, 40, 40), (225, 225, 225)

Colour = tuple[int, int, int]


class _Picture:
    """RGB on white; coordinates in final pixels, y downwards."""

    def __init__(self, width: int, height: int) -> None:
        self.pixels = np.full((height * _SAMPLES, width * _SAMPLES, 3), 255, dtype=np.uint8)

    def line(self, x0: float, y0: float, x1: float, y1: float, colour: Colour, width: float) -> None:
        """A straight stroke: squares stamped half a sample apart."""
        steps = int(max(abs(x1 - x0), abs(y1 - y0)) * _SAMPLES * 2) + 1
        xs, ys = np.linspace(x0, x1, steps) * _SAMPLES, np.linspace(y0, y1, steps) * _SAMPLES
        size = max(1, round(width * _SAMPLES))
        for dx in range(size):
            for dy in range(size):
                columns = np.round(xs - size / 2 + dx).astype(int).clip(0, self.pixels.shape[1] - 1)
                rows = np.round(ys - size / 2 + dy).astype(int).clip(0, self.pixels.shape[0] - 1)
                self.pixels[rows, columns] = colour

    def disc(self, x: float, y: float, radius: float, colour: Colour) -> None:
        for dy in range(-int(radius), int(radius) + 1):
            half = (radius**2 - dy**2) ** 0.5
            self.line(x - half, y + dy, x + half, y + dy, colour, 1.5)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: float = 8,
        anchor: Literal["start", "middle", "end"] = "start",
        colour: Colour = _INK,
        upwards: bool = False,
    ) -> None:
        """Base line at y; `upwards` turns it by 90 degrees."""
        unit = size / HEIGHT
        shift = {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor] * text_width(text, size)
        for number, character in enumerate(text):
            left = number * _ADVANCE * unit - shift
            for stroke in strokes(character):
                for (ax, ay), (bx, by) in itertools.pairwise(stroke):
                    ends = [(left + ax * unit, ay * unit), (left + bx * unit, by * unit)]
                    placed = [(x - v, y - u) if upwards else (x + u, y - v) for u, v in ends]
                    self.line(*placed[0], *placed[1], colour, 1.0)

    def png(self) -> bytes:
        """Box-filtered down and encoded (8-bit RGB, no interlace)."""
        height, width = (side // _SAMPLES for side in self.pixels.shape[:2])
        cells = self.pixels.reshape(height, _SAMPLES, width, _SAMPLES, 3)
        small = cells.mean(axis=(1, 3)).round().astype(np.uint8)
        rows = np.concatenate([np.zeros((height, 1), np.uint8), small.reshape(height, width * 3)], axis=1)
        header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
        chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
        return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in chunks)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def _rgb(colour: str) -> Colour:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _draw(picture: _Picture, chart: Chart, left: int, top: int) -> None:
    x_scale, y_scale = scales(chart)
    inner_w, inner_h = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    x0, y0 = left + _LEFT, top + _TOP

    picture.text(x0, top + 16, chart.title, 9)
    for value in y_scale.ticks(5):
        y = y0 + (1 - y_scale.place(value)) * inner_h
        picture.line(x0, y, x0 + inner_w, y, _GRID, 1)
        picture.text(x0 - 6, y + 3, tick_label(value), 7, "end")
    for value, label in chart.ticks_x or [(value, tick_label(value)) for value in x_scale.ticks(7)]:
        x = x0 + x_scale.place(value) * inner_w
        picture.line(x, y0, x, y0 + inner_h, _GRID, 1)
        picture.text(x, y0 + inner_h + 15, label, 7, "middle")
    picture.text(x0 + inner_w / 2, top + _HEIGHT - 8, chart.x_label, 8, "middle")
    picture.text(left + 16, y0 + inner_h / 2, chart.y_label, 8, "middle", upwards=True)
    legend = float(x0)
    for number, line in enumerate(chart.lines):
        colour = _rgb(COLOURS[number % len(COLOURS)])
        placed = [(x0 + x_scale.place(p.x) * inner_w, y0 + (1 - y_scale.place(p.y)) * inner_h) for p in line.points]
        for a, b in itertools.pairwise(placed):
            picture.line(*a, *b, colour, 2)
        for (x, y), point in zip(placed, line.points, strict=True):
            if line.marks:
                picture.disc(x, y, 4, colour)
                picture.text(x + 7, y - 6, point.note, 6)
        picture.line(legend, top + 28, legend + 14, top + 28, colour, 3)
        picture.text(legend + 19, top + 31, line.name, 7)
        legend += 36 + text_width(line.name, 7)


def render_all(charts: list[Chart]) -> bytes:
    """Two charts a row. An empty list gives an empty white picture."""
    rows = max(1, -(-len(charts) // 2))
    picture = _Picture(_WIDTH * 2, _HEIGHT * rows)
    for number, chart in enumerate(charts):
        _draw(picture, chart, number % 2 * _WIDTH, number // 2 * _HEIGHT)
    return picture.png()
