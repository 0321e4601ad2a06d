"""A small stroke font for the chart images: capitals, digits and signs as polylines on a grid 4 wide and 6 high.

Each glyph is a list of strokes, each stroke points `xy` (y upwards); lower case is drawn as capitals. Other
characters are drawn as a box.
"""

from __future__ import annotations

WIDTH, HEIGHT, ADVANCE = 4, 6, 6

_STROKES = {
    " ": "",
    "0": "10 01 05 16 36 45 41 30 10",
    "1": "05 26 20,00 40",
    "2": "05 16 36 45 44 00 40",
    "3": "05 16 36 45 44 33 42 41 30 10 01,13 33",
    "4": "30 36 02 42",
    "5": "46 06 03 33 42 41 30 00",
    "6": "45 36 16 05 01 10 30 41 42 33 03",
    "7": "06 46 20",
    "8": "13 04 05 16 36 45 44 33 13 02 01 10 30 41 42 33",
    "9": "01 10 30 41 45 36 16 05 04 13 43",
    "A": "00 26 40,12 32",
    "B": "00 06 36 45 44 33 03,33 42 41 30 00",
    "C": "45 36 16 05 01 10 30 41",
    "D": "00 06 26 44 42 20 00",
    "E": "46 06 00 40,03 33",
    "F": "46 06 00,03 33",
    "G": "45 36 16 05 01 10 30 41 43 23",
    "H": "00 06,40 46,03 43",
    "I": "16 36,26 20,10 30",
    "J": "46 41 30 10 01",
    "K": "00 06,46 02,13 40",
    "L": "06 00 40",
    "M": "00 06 23 46 40",
    "N": "00 06 40 46",
    "O": "00 06 46 40 00",
    "P": "00 06 36 45 44 33 03",
    "Q": "10 01 05 16 36 45 41 30 10,22 40",
    "R": "00 06 36 45 44 33 03,23 40",
    "S": "45 36 16 05 04 13 33 42 41 30 10 01",
    "T": "06 46,26 20",
    "U": "06 01 10 30 41 46",
    "V": "06 20 46",
    "W": "06 10 23 30 46",
    "X": "00 46,06 40",
    "Y": "06 23 46,23 20",
    "Z": "06 46 00 40",
    ".": "10 20 21 11 10",
    ",": "21 11 00",
    ":": "11 21,14 24",
    "-": "03 43",
    "–": "03 43",
    "+": "03 43,21 25",
    "/": "00 46",
    "(": "36 24 22 30",
    ")": "16 24 22 10",
    "×": "01 45,05 41",
    "%": "00 46,05 16,30 41",
    "_": "00 40",
    "=": "02 42,04 44",
    "→": "03 43,25 43 21",
    "'": "26 24",
}
_BOX = "11 15 35 31 11"

Stroke = list[tuple[int, int]]


def strokes(character: str) -> list[Stroke]:
    """Polylines of one character in grid units."""
    text = _STROKES.get(character.upper(), _BOX)
    return [[(int(point[0]), int(point[1])) for point in stroke.split()] for stroke in text.split(",") if stroke]


def text_width(text: str, size: float) -> float:
    """Width in pixels of text whose capitals are `size` pixels high."""
    return max(0.0, len(text) * ADVANCE - (ADVANCE - WIDTH)) * size / HEIGHT
