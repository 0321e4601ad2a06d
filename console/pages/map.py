"""The live map of device pages: one cell a bin, coloured and marked by state, with a cursor.

Owns drawing and moving; asks for a bin's owner by a message.
"""

from __future__ import annotations

from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget

from tsd.console.history import Frame
from tsd.console.messages import BinChosen
from tsd.console.numbers import count
from tsd.console.pages.binning import Grid, grid, next_other
from tsd.console.palette import PAGE_GLYPHS
from tsd.console.shell.panel import palette_of, refresh_changed, set_titles
from tsd.console.snapshot import FREE

LABEL = 7


class PageMap(Widget, can_focus=True):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("h,left", "move(-1, 0)", "left", show=False),
        Binding("l,right", "move(1, 0)", "right", show=False),
        Binding("k,up", "move(0, -1)", "up", show=False),
        Binding("j,down", "move(0, 1)", "down", show=False),
        Binding("ctrl+d,pagedown", "move(0, 8)", "8 rows down", show=False),
        Binding("ctrl+u,pageup", "move(0, -8)", "8 rows up", show=False),
        Binding("g,home", "edge(0)", "first", show=False),
        Binding("G,end", "edge(1)", "last", show=False),
        Binding("n", "other(1)", "next state", show=False),
        Binding("N", "other(-1)", "previous state", show=False),
        Binding("enter", "ask", "owner", show=False),
    ]

    frame: reactive[Frame | None] = reactive(None, init=False, repaint=False)

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.border_title = "Device pages"
        self.bin = 0
        self.moved = False
        self.bins = b""
        self.bin_pages = 1
        self._grid = Grid(b"", [], 1, 0)
        self._shown: dict[int, Strip] = {}

    def watch_frame(self, frame: Frame | None) -> None:
        engine = frame.engine if frame else None
        self.bins = engine.page_map.decode() if engine else b""
        self.bin_pages = (engine.page_map.bin_pages or 1) if engine else 1
        self.bin = max(0, min(self.bin, len(self.bins) - 1))
        self._regrid()
        if not self.moved and self._grid.states:
            self.bin = self._first_like(0)
        refresh_changed(self, self._shown, self._line)
        if engine is not None:
            total = engine.tiers.device.total
            tokens = engine.page_size or "?"
            set_titles(self, f"Device pages · engine {engine.engine} · {count(total)} pages × {tokens} tokens")

    def on_resize(self) -> None:
        self._shown.clear()
        self._regrid()
        self.refresh()

    def _regrid(self) -> None:
        self._grid = grid(self.bins, self.size.width - LABEL, self.size.height)
        each = self.bin_pages * self._grid.per_cell
        size = "one cell a page" if each == 1 else f"one cell ≈ {count(round(each))} pages"
        set_titles(self, self.border_title or "", size)

    @property
    def cell(self) -> int:
        return self._grid.cell_of(self.bin)

    @property
    def state(self) -> int:
        return self.bins[self.bin] if self.bins else FREE

    def action_move(self, right: int, down: int) -> None:
        self._go(self.cell + right + down * self._grid.columns)

    def action_edge(self, which: int) -> None:
        self._go(0 if which == 0 else len(self._grid.states) - 1)

    def action_other(self, step: int) -> None:
        self._go(next_other(self._grid.states, self.cell, step))

    def action_ask(self) -> None:
        engine = self.frame.engine if self.frame else None
        if engine is not None and self.bins:
            # From now on the cursor is the operator's: new numbers do not move it.
            self.moved = True
            self.post_message(BinChosen(engine.engine, self.bin))

    def on_click(self, event: events.Click) -> None:
        spot = event.get_content_offset(self)
        if spot is not None and LABEL <= spot.x < LABEL + self._grid.columns:
            self._go(spot.y * self._grid.columns + spot.x - LABEL)

    def _go(self, cell: int) -> None:
        """Puts the cursor on a cell: on its first bin of the state that the cell shows."""
        states = self._grid.states
        if not states:
            return
        self.moved = True
        self.bin = self._first_like(max(0, min(cell, len(states) - 1)))
        self.refresh()
        self.action_ask()

    def _first_like(self, cell: int) -> int:
        """The first bin of a cell that has the state which the cell shows."""
        bins = self._grid.bins_of(cell)
        return max(bins.start, self.bins.find(bytes([self._grid.states[cell]]), bins.start, bins.stop))

    def render_line(self, y: int) -> Strip:
        strip = self._shown[y] = self._line(y)
        return strip

    def _line(self, y: int) -> Strip:
        palette = palette_of(self)
        base = self.rich_style
        columns, states = self._grid.columns, self._grid.states
        row = states[y * columns : (y + 1) * columns]
        if not row:
            text = "no page map from this engine" if not states and y == 0 else ""
            return Strip([Segment(text, base + Style.parse(palette.dim))]).adjust_cell_length(self.size.width, base)
        first = self._grid.starts[y * columns] * self.bin_pages
        segments = [Segment(f"{count(first):>{LABEL - 2}}  ", base + Style.parse(palette.faint))]
        at = 0
        while at < len(row):
            state, end = row[at], at + 1
            while end < len(row) and row[end] == state:
                end += 1
            known = state if state < len(PAGE_GLYPHS) else FREE
            glyph = PAGE_GLYPHS[state] if state < len(PAGE_GLYPHS) else "?"
            segments.append(Segment(glyph * (end - at), base + Style.parse(palette.pages[known])))
            at = end
        strip = Strip(segments)
        if y * columns <= self.cell < y * columns + len(row):
            x = LABEL + self.cell - y * columns
            mark = Segment("◆" if self.has_focus else "◇", base + Style.parse(palette.mark))
            strip = Strip([*strip.crop(0, x), mark, *strip.crop(x + 1, strip.cell_length)])
        return strip.adjust_cell_length(self.size.width, base)
