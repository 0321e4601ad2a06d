"""The screen of events: what happened, to which request, and why. Newest first."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input

from tsd.console.draw import ink
from tsd.console.events.rows import COLUMNS, KINDS, cells_of, filter_events, key_of, numbered
from tsd.console.history import Frame
from tsd.console.messages import RowChosen
from tsd.console.numbers import clock, count
from tsd.console.palette import Palette
from tsd.console.shell.filter import FilterInput
from tsd.console.shell.pane import Pane
from tsd.console.shell.panel import Panel, fields, set_titles, wrap
from tsd.console.shell.table import Table


class Totals(Panel):
    """Counts since the server started."""

    title = "Since start"

    def lines(self, frame: Frame, width: int, height: int, palette: Palette) -> list[Text]:
        if frame.snapshot is None:
            return []
        engines = frame.snapshot.engines
        items: list[tuple[str, str]] = []
        for name in ("retractions", "evictions", "aborts", "refusals", "errors"):
            known = [n for e in engines if (n := getattr(e.counters, name)) is not None]
            items.append((name, count(sum(known)) if known else "–"))
        return [fields(items, palette)]


class EventDetail(Panel):
    """The whole of the selected event."""

    title = "Selected"

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.row: object = None

    def lines(self, frame: Frame, width: int, height: int, palette: Palette) -> list[Text]:
        from tsd.console.events.rows import Row

        if not isinstance(self.row, Row):
            return [ink("No event is selected.", palette.dim)]
        event = self.row.event
        where = f"engine {self.row.engine}" if self.row.engine >= 0 else "the server"
        head = fields(
            [("at", clock(event.time)), ("kind", event.kind), ("on", where), ("request", event.request_id or "–")],
            palette,
        )
        text = f"{event.cause or 'no cause given'}: {event.text or ''}".rstrip(": ")
        return [head, *wrap(text, width, palette.strong)]


class EventsPane(Pane):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter", show=False),
        Binding("f", "kind", "kind", show=False),
        Binding("escape", "close", "clear", show=False),
    ]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.kind = ""

    def compose(self) -> ComposeResult:
        yield Totals(classes="box")
        yield FilterInput("request, cause or text", id="event-filter")
        table = Table(COLUMNS, key_of, cells_of, empty="Nothing happened while this console watched.", id="event-table")
        table.add_class("box")
        yield table
        yield EventDetail(classes="box")

    def focus_first(self) -> None:
        self.query_one(Table).focus()

    def show_frame(self, frame: Frame) -> None:
        text = self.query_one(FilterInput).value
        table = self.query_one(Table)
        rows = filter_events(numbered(frame.events), self.kind, text)
        # The newest row is on top: while the cursor is there it stays there.
        if table.place == 0:
            table.key = None
        table.set_rows(rows)
        set_titles(table, f"Events · {len(rows)} of {len(frame.events)}" + (f" · {self.kind}" if self.kind else ""))
        self._detail()

    def _detail(self) -> None:
        detail = self.query_one(EventDetail)
        detail.row = self.query_one(Table).row
        detail.redraw()

    def on_row_chosen(self, message: RowChosen) -> None:
        message.stop()
        self._detail()

    def on_input_changed(self, message: Input.Changed) -> None:
        message.stop()
        if self.frame is not None:
            self.show_frame(self.frame)

    def action_filter(self) -> None:
        self.query_one(FilterInput).open()

    def action_kind(self) -> None:
        """Shows the events of the next kind, or of all."""
        kinds = ("", *KINDS)
        self.kind = kinds[(kinds.index(self.kind) + 1) % len(kinds)]
        if self.frame is not None:
            self.show_frame(self.frame)

    def action_close(self) -> None:
        self.kind = ""
        self.query_one(FilterInput).clear_all()
        if self.frame is not None:
            self.show_frame(self.frame)
