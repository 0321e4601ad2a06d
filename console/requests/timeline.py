"""One request's life, as the server tells it: when it was queued, prefilled in chunks, decoded, retracted, resumed."""

from __future__ import annotations

from typing import Any, NamedTuple

from rich.text import Text

from tsd.console.draw import ink
from tsd.console.history import Frame
from tsd.console.numbers import count, duration, percent, ratio
from tsd.console.palette import Palette
from tsd.console.requests.rows import Row
from tsd.console.shell.panel import Panel, fields, wrap

GLYPHS = {
    "queued": "○",
    "prefetch": "↑",
    "chunk": "▒",
    "decode": "█",
    "retracted": "■",
    "resumed": "▲",
    "finished": "●",
}


class Span(NamedTuple):
    """From `start` (seconds after submission) until the next thing happened; `end` None while it lasts."""

    start: float
    end: float | None
    what: str
    detail: str


def spans(timeline: Any) -> list[Span]:
    """The timeline as spans. Entries that are not [seconds, name, detail] are left out; chunks in a row are merged."""
    entries: list[tuple[float, str, str]] = []
    for entry in timeline if isinstance(timeline, list) else []:
        if isinstance(entry, (list, tuple)) and len(entry) >= 2 and isinstance(entry[0], (int, float)):
            entries.append((float(entry[0]), str(entry[1]), str(entry[2]) if len(entry) > 2 and entry[2] else ""))
    entries.sort(key=lambda entry: entry[0])
    found: list[Span] = []
    run = 1
    for place, (start, what, detail) in enumerate(entries):
        end = entries[place + 1][0] if place + 1 < len(entries) else None
        if found and what == "chunk" and found[-1].what == "chunk":
            run += 1
            last = detail.rpartition(", ")[2] or detail
            found[-1] = Span(found[-1].start, end, what, f"{run} chunks, {last}")
        else:
            run = 1
            found.append(Span(start, end, what, detail))
    return found


def style_of(what: str, palette: Palette) -> str:
    return {
        "queued": palette.pink,
        "prefetch": palette.blue,
        "chunk": palette.blue,
        "decode": palette.ok,
        "retracted": palette.bad,
        "resumed": palette.warn,
        "finished": palette.strong,
    }.get(what, palette.dim)


class Timeline(Panel):
    """The request under the cursor."""

    title = "Timeline"

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.row: Row | None = None
        self.answer: dict[str, Any] | None = None
        self.trouble = ""

    def choose(self, row: Row | None) -> None:
        if row is None or self.row is None or row.request.id != self.row.request.id:
            self.answer, self.trouble = None, ""
        self.row = row
        self.redraw()

    def tell(self, request_id: str, answer: dict[str, Any] | None, trouble: str = "") -> None:
        """The server's answer; one for another request is too late and dropped."""
        if self.row is not None and self.row.request.id == request_id:
            self.answer, self.trouble = answer or self.answer, trouble
            self.redraw()

    def lines(self, frame: Frame, width: int, height: int, palette: Palette) -> list[Text]:
        if self.row is None:
            return [ink("No request is selected.", palette.dim)]
        request = self.row.request
        age = request.age_s or 0.0
        lines = [
            ink(request.id, palette.strong),
            ink((request.state or "–").lower(), palette.state(request.state)).append(
                f" on engine {self.row.engine} for {request.client or 'nobody named'}", palette.dim
            ),
            fields(
                [("prompt", count(request.prompt)), ("cached", percent(ratio(request.cached, request.prompt)))], palette
            ),
            fields(
                [("output", count(request.output)), ("tok/s", count(request.tok_s)), ("age", duration(age))], palette
            ),
            ink(""),
        ]
        if self.trouble:
            return lines + wrap(self.trouble, width, palette.warn)
        if self.answer is None:
            return [*lines, ink("asking the server …", palette.dim)]
        found = spans(self.answer.get("timeline"))
        if not found:
            return [*lines, ink("The server tells no timeline.", palette.dim)]
        whole = max([age] + [span.end or span.start for span in found]) or 1.0
        lines += [band(found, whole, width, palette), ink("")]
        lost = 0.0
        for span in found:
            took = (span.end if span.end is not None else whole) - span.start
            lost += took if span.what == "retracted" else 0.0
            style = style_of(span.what, palette)
            line = ink(f"{_at(span.start)} ", palette.dim).append(f"{GLYPHS.get(span.what, '·')} {span.what:<9}", style)
            line.append(f"{_at(took) if span.end is not None or span.what != 'finished' else '':>8}", palette.text)
            lines.append(line)
            lines += wrap(span.detail, width, palette.dim, "          ")
        if lost:
            lines += [ink(""), ink(f"{_at(lost).strip()} lost to retraction", palette.bad)]
        return lines[: height or None]


def band(found: list[Span], whole: float, width: int, palette: Palette) -> Text:
    """The whole life on one line, each part as long as it took."""
    cells: list[tuple[str, str]] = [("·", palette.faint)] * width
    for span in found:
        end = whole if span.end is None else span.end
        first = min(width - 1, int(span.start / whole * width))
        last = min(width, max(first + 1, round(end / whole * width)))
        for place in range(first, last):
            cells[place] = (GLYPHS.get(span.what, "·"), style_of(span.what, palette))
    text = Text()
    for glyph, style in cells:
        text.append("█" if glyph in "█○▲●" else glyph, style)
    return text


def _at(seconds: float) -> str:
    return f"{seconds * 1000:6.0f}ms" if seconds < 1 else f"{seconds:7.2f}s"
