"""A table that draws only the rows in sight. The cursor follows a row's key, so sorting and updates do not move it.

Owns scrolling, the cursor and the mouse; knows nothing about what the rows mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from tsd.console.draw import ink
from tsd.console.messages import RowChosen, SortAsked
from tsd.console.numbers import shorten
from tsd.console.palette import Palette
from tsd.console.shell.panel import palette_of, refresh_changed, to_strip


@dataclass(frozen=True)
class Column:
    """`width` 0 takes what is left. Columns with a higher `rank` go first when the table is too narrow."""

    key: str
    title: str
    width: int
    right: bool = False
    rank: int = 0


Cell = tuple[str, str]


class Table(ScrollView, can_focus=True):
    """`set_rows` gives the rows; `key_of` names one, `cells_of` gives its (text, style) for each column's key."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "move(1)", "down", show=False),
        Binding("k,up", "move(-1)", "up", show=False),
        Binding("ctrl+d", "half(1)", "half a page down", show=False),
        Binding("ctrl+u", "half(-1)", "half a page up", show=False),
        Binding("pagedown,ctrl+f", "half(2)", "page down", show=False),
        Binding("pageup,ctrl+b", "half(-2)", "page up", show=False),
        Binding("g,home", "edge(0)", "first", show=False),
        Binding("G,end", "edge(1)", "last", show=False),
        Binding("enter", "open", "open", show=False),
    ]

    DEFAULT_CSS = "Table { overflow-x: hidden; overflow-y: auto; }"

    def __init__(
        self,
        columns: Sequence[Column],
        key_of: Callable[[Any], str],
        cells_of: Callable[[Any, Palette], dict[str, Cell]],
        *,
        empty: str = "",
        id: str | None = None,
    ) -> None:
        super().__init__(id=id)
        self.columns = tuple(columns)
        self.key_of = key_of
        self.cells_of = cells_of
        self.empty = empty
        self.rows: Sequence[Any] = ()
        self.place = 0
        self.key: str | None = None
        self.sorted_by = ""
        self.descending = False
        self._shown: dict[int, Strip] = {}

    def set_rows(self, rows: Sequence[Any], sorted_by: str = "", descending: bool = False) -> None:
        """Shows other rows. The cursor stays on its key, or on its place when that row is gone."""
        self.rows = rows
        self.sorted_by, self.descending = sorted_by, descending
        before = self.key
        if self.key is not None:
            found = next((i for i, row in enumerate(rows) if self.key_of(row) == self.key), None)
            if found is not None:
                self.place = found
        self.place = max(0, min(self.place, len(rows) - 1))
        self.key = self.key_of(rows[self.place]) if rows else None
        self.virtual_size = Size(self.size.width, len(rows) + 1)
        if self.key != before:
            self.post_message(RowChosen(self.key))
        refresh_changed(self, self._shown, self._line)

    @property
    def row(self) -> Any | None:
        """The row under the cursor."""
        return self.rows[self.place] if self.rows else None

    def action_move(self, by: int) -> None:
        self._go(self.place + by)

    def action_half(self, by: int) -> None:
        self._go(self.place + by * max(1, (self.size.height - 1) // 2))

    def action_edge(self, which: int) -> None:
        self._go(0 if which == 0 else len(self.rows) - 1)

    def action_open(self) -> None:
        if self.key is not None:
            self.post_message(RowChosen(self.key, opened=True))

    def _go(self, place: int) -> None:
        if not self.rows:
            return
        self.place = max(0, min(place, len(self.rows) - 1))
        self.key = self.key_of(self.rows[self.place])
        seen = max(1, self.size.height - 1)
        if self.place < self.scroll_offset.y:
            self.scroll_to(y=self.place, animate=False, force=True)
        elif self.place >= self.scroll_offset.y + seen:
            self.scroll_to(y=self.place - seen + 1, animate=False, force=True)
        self.post_message(RowChosen(self.key))
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        spot = event.get_content_offset(self)
        if spot is None:
            return
        if spot.y == 0:
            edge = 0
            for column, width in self._layout():
                edge += width + 1
                if spot.x < edge:
                    self.post_message(SortAsked(column.key))
                    return
            return
        place = spot.y - 1 + self.scroll_offset.y
        if place < len(self.rows):
            self._go(place)
            if event.chain > 1:
                self.action_open()

    def on_resize(self) -> None:
        self._shown.clear()
        self.virtual_size = Size(self.size.width, len(self.rows) + 1)

    def _layout(self) -> list[tuple[Column, int]]:
        """The columns that fit, with their widths; one blank follows each."""
        shown = list(self.columns)
        room = self.size.width - 1
        while len(shown) > 2 and sum((c.width or 12) + 1 for c in shown) > room:
            worst = max(shown, key=lambda c: c.rank)
            if not worst.rank:
                break
            shown.remove(worst)
        fixed = sum(c.width + 1 for c in shown if c.width)
        flexible = [c for c in shown if not c.width]
        share = max(6, (room - fixed) // len(flexible) - 1) if flexible else 0
        return [(c, c.width or share) for c in shown]

    def render_line(self, y: int) -> Strip:
        strip = self._shown[y] = self._line(y)
        return strip

    def _line(self, y: int) -> Strip:
        palette = palette_of(self)
        width = self.size.width
        base = self.rich_style
        if y == 0:
            return to_strip(self, self._header(palette), width, base)
        place = y - 1 + self.scroll_offset.y
        if place >= len(self.rows):
            note = self.empty if not self.rows and y == 2 else ""
            return to_strip(self, ink(f"  {note}", palette.dim), width, base)
        cells = self.cells_of(self.rows[place], palette)
        text = Text()
        for column, size in self._layout():
            value, style = cells.get(column.key, ("", palette.text))
            value = shorten(value, size)
            text.append(value.rjust(size) if column.right else value.ljust(size), style).append(" ")
        if place == self.place:
            cursor = Style.parse(palette.cursor if self.has_focus else f"bold {palette.accent}")
            text.stylize(cursor)
            return to_strip(self, text, width, base + cursor)
        return to_strip(self, text, width, base)

    def _header(self, palette: Palette) -> Text:
        text = Text()
        for column, size in self._layout():
            mark = ("▼" if self.descending else "▲") if column.key == self.sorted_by else ""
            title = f"{mark}{column.title}" if column.right else f"{column.title}{mark}"
            style = palette.accent if mark else palette.header
            text.append((title.rjust(size) if column.right else title.ljust(size))[:size], style).append(" ")
        return text
