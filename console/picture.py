"""A screen as cells, and cells as text or as an SVG that looks the same everywhere.

Owns the drawing: blocks, shades and box lines become shapes, so that they join without gaps whatever fonts the viewer
has; only letters are text. Knows Textual's compositor and nothing about the console's content.
"""

from __future__ import annotations

from html import escape
from typing import Any, NamedTuple

from rich.cells import cell_len
from rich.color import Color
from rich.style import Style
from rich.terminal_theme import SVG_EXPORT_THEME
from textual.app import App

CELL_W, CELL_H = 8.4, 18.0
BASELINE = 13.4
MARGIN = 10.0
FONTS = "'Fira Code','JetBrains Mono','DejaVu Sans Mono',Menlo,Consolas,monospace"
BLOCKS = {"█": (0.0, 0.0, 1.0, 1.0)}
BLOCKS |= {glyph: (0.0, 1 - n / 8, 1.0, n / 8) for n, glyph in enumerate("▁▂▃▄▅▆▇", 1)}
BLOCKS |= {glyph: (0.0, 0.0, 1 - n / 8, 1.0) for n, glyph in enumerate("▉▊▋▌▍▎▏", 1)}
BLOCKS |= {"▀": (0.0, 0.0, 1.0, 0.5), "▐": (0.5, 0.0, 0.5, 1.0), "■": (0.1, 0.25, 0.8, 0.5)}
SHADES = {"░": 0.28, "▒": 0.5, "▓": 0.75}
# Each arm goes from the cell's middle: left, right, up, down.
ARMS = {
    "─": "lr", "│": "ud", "╭": "rd", "╮": "ld", "╰": "ru", "╯": "lu", "├": "rud", "┤": "lud", "╌": "-",
    "━": "=", "╸": "=", "┌": "rd", "┐": "ld", "└": "ru", "┘": "lu",
}  # fmt: skip


class Cell(NamedTuple):
    char: str
    style: Style


def capture(app: App[Any]) -> list[list[Cell]]:
    """The screen in sight, dialogs included, row by row. A double-width character is followed by an empty cell."""
    update = app.screen._compositor.render_update(full=True, screen_stack=app._background_screens)
    rows: list[list[Cell]] = []
    for strips in update.strips:  # type: ignore[union-attr]
        row: list[Cell] = []
        for strip in strips:
            for text, style, _ in strip:
                for char in text:
                    row.append(Cell(char, style or Style.null()))
                    row += [Cell("", style or Style.null())] * (cell_len(char) - 1)
        rows.append(row)
    return rows


def plain(rows: list[list[Cell]]) -> str:
    """The screen's text, without blanks at the ends of lines."""
    return "\n".join("".join(cell.char for cell in row).rstrip() for row in rows) + "\n"


def styled(rows: list[list[Cell]]) -> str:
    """For each row, runs of one style as `columns:style`; links and other metadata are left out."""
    lines = []
    for row in rows:
        runs: list[tuple[int, str]] = []
        for cell in row:
            name = _name(cell.style)
            if runs and runs[-1][1] == name:
                runs[-1] = (runs[-1][0] + 1, name)
            else:
                runs.append((1, name))
        lines.append(" | ".join(f"{length}:{name}" for length, name in runs))
    return "\n".join(lines) + "\n"


def _name(style: Style) -> str:
    words = [word for word in ("bold", "dim", "italic", "underline", "reverse") if getattr(style, word)]
    words.append(style.color.name if style.color else "-")
    if style.bgcolor:
        words.append(f"on {style.bgcolor.name}")
    return " ".join(words)


def _hex(colour: Color | None, foreground: bool) -> str:
    return (colour or Color.default()).get_truecolor(SVG_EXPORT_THEME, foreground=foreground).hex


def _inks(style: Style) -> tuple[str, str]:
    """Foreground and background of a cell."""
    fore, back = _hex(style.color, True), _hex(style.bgcolor, False)
    return (back, fore) if style.reverse else (fore, back)


def svg(rows: list[list[Cell]], title: str) -> str:
    """The screen as an SVG document with a frame and `title`. The same cells give the same bytes."""
    width, height = max(map(len, rows)), len(rows)
    top = MARGIN + 26
    full_w, full_h = width * CELL_W + 2 * MARGIN, height * CELL_H + top + MARGIN
    back = _inks(rows[-2][0].style if height > 1 else rows[0][0].style)[1]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {full_w:.1f} {full_h:.1f}" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{full_w:.1f}" height="{full_h:.1f}" rx="9" fill="{back}"/>',
        f'<rect x=".5" y=".5" width="{full_w - 1:.1f}" height="{full_h - 1:.1f}" rx="9" fill="none" '
        'stroke="#7f8ba0" stroke-opacity=".45"/>',
        '<g fill="#7f8ba0" fill-opacity=".55">',
        *(f'<circle cx="{18 + 16 * n}" cy="18" r="5"/>' for n in range(3)),
        "</g>",
        f'<text x="{full_w / 2:.1f}" y="22" text-anchor="middle" font-family="sans-serif" '
        f'font-size="12" fill="#7f8ba0">{escape(title)}</text>',
        f'<g transform="translate({MARGIN:g} {top:g})" font-family="{FONTS}" font-size="14" '
        'shape-rendering="crispEdges">',
    ]
    for y, row in enumerate(rows):
        parts += _backgrounds(row, y, back)
    for y, row in enumerate(rows):
        parts += _shapes(row, y)
        parts += _letters(row, y)
    return "\n".join([*parts, "</g>", "</svg>", ""])


def _backgrounds(row: list[Cell], y: int, back: str) -> list[str]:
    found, x = [], 0
    while x < len(row):
        ink, end = _inks(row[x].style)[1], x
        while end < len(row) and _inks(row[end].style)[1] == ink:
            end += 1
        if ink != back:
            found.append(_rect(x * CELL_W, y * CELL_H, (end - x) * CELL_W, CELL_H, ink))
        x = end
    return found


def _rect(x: float, y: float, w: float, h: float, ink: str, extra: str = "") -> str:
    return f'<rect x="{x:.2f}" y="{y:.2f}" width="{w:.2f}" height="{h:.2f}" fill="{ink}"{extra}/>'


def _shapes(row: list[Cell], y: int) -> list[str]:
    found, x = [], 0
    while x < len(row):
        char, ink = row[x].char, _inks(row[x].style)[0]
        end = x + 1
        if char in BLOCKS or char in SHADES:
            while (
                end < len(row) and row[end].char == char and _inks(row[end].style)[0] == ink and char not in "▏▎▍▌▋▊▉▐■"
            ):
                end += 1
            left, up, wide, high = BLOCKS.get(char, (0.0, 0.0, 1.0, 1.0))
            extra = f' fill-opacity="{SHADES[char]}"' if char in SHADES else ""
            wide = wide if end == x + 1 else float(end - x)
            found.append(_rect((x + left) * CELL_W, (y + up) * CELL_H, wide * CELL_W, high * CELL_H, ink, extra))
        elif char in ARMS:
            while end < len(row) and row[end].char == char and char in "─╌━" and _inks(row[end].style)[0] == ink:
                end += 1
            found.append(_lines(char, x, y, end - x, ink))
        x = end
    return found


def _lines(char: str, x: int, y: int, run: int, ink: str) -> str:
    left, top = x * CELL_W, y * CELL_H
    mid_x, mid_y = left + CELL_W / 2, top + CELL_H / 2
    right = left + run * CELL_W
    if char in "━╸":
        wide = run * CELL_W if char == "━" else CELL_W / 2
        return _rect(left, mid_y - 2.5, wide, 5, ink)
    if char in "─╌":
        dash = f' stroke-dasharray="{CELL_W / 2:.1f}"' if char == "╌" else ""
        return f'<path d="M{left:.2f} {mid_y:.2f}H{right:.2f}" stroke="{ink}"{dash}/>'
    ends = {
        "l": f"M{left:.2f} {mid_y:.2f}H{mid_x:.2f}",
        "r": f"M{mid_x:.2f} {mid_y:.2f}H{left + CELL_W:.2f}",
        "u": f"M{mid_x:.2f} {top:.2f}V{mid_y:.2f}",
        "d": f"M{mid_x:.2f} {mid_y:.2f}V{top + CELL_H:.2f}",
    }
    return f'<path d="{"".join(ends[arm] for arm in ARMS[char])}" fill="none" stroke="{ink}"/>'


def _letters(row: list[Cell], y: int) -> list[str]:
    """Runs of one style, without blanks at their ends, each stretched to its cells."""
    found, x = [], 0
    while x < len(row):
        style, end = row[x].style, x
        ink = (_inks(style)[0], bool(style.bold), bool(style.dim), bool(style.italic))
        text = ""
        while end < len(row):
            cell = row[end]
            other = cell.style
            if (_inks(other)[0], bool(other.bold), bool(other.dim), bool(other.italic)) != ink:
                break
            text += " " if cell.char in BLOCKS or cell.char in SHADES or cell.char in ARMS else cell.char
            end += 1
        at = x
        for piece in text.replace("   ", "\0").split("\0") if "   " in text else [text]:
            body = piece.strip()
            if body:
                start = at + len(piece) - len(piece.lstrip())
                extra = (' font-weight="bold"' if ink[1] else "") + (' fill-opacity=".6"' if ink[2] else "")
                found.append(
                    f'<text x="{start * CELL_W:.2f}" y="{y * CELL_H + BASELINE:.2f}" '
                    f'textLength="{len(body) * CELL_W:.2f}" fill="{ink[0]}"{extra} '
                    f'xml:space="preserve">{escape(body)}</text>'
                )
            at += len(piece) + 3
        x = end
    return found
