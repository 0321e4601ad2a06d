"""The screen of requests: filter, table, timeline."""

from __future__ import annotations

from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import Input

from tsd.console.actions import ABORT
from tsd.console.history import Frame
from tsd.console.messages import ActionAsked, RequestWanted, RowChosen, SortAsked
from tsd.console.requests.rows import COLUMNS, ORDER, cells_of, filter_rows, key_of, rows_of, sort_rows
from tsd.console.requests.timeline import Timeline
from tsd.console.shell.filter import FilterInput
from tsd.console.shell.pane import Pane
from tsd.console.shell.panel import set_titles
from tsd.console.shell.table import Table

REFETCH_S = 2.0


class RequestsPane(Pane):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter", show=False),
        Binding("s", "sort", "sort", show=False),
        Binding("S", "turn", "turn the order", show=False),
        Binding("x", "abort", "abort", show=False),
        Binding("escape", "close", "close", show=False),
    ]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.sorted_by = "age"
        self.descending = True
        self.open = False
        self.asked_at = 0.0

    def compose(self) -> ComposeResult:
        yield FilterInput("id, state, client; prompt>4k retr>0 engine=1", id="request-filter")
        with Horizontal():
            table = Table(COLUMNS, key_of, cells_of, empty="No request matches.", id="request-table")
            table.add_class("box")
            yield table
            yield Timeline(id="timeline", classes="box")

    def on_mount(self) -> None:
        self.query_one(Timeline).display = False

    def focus_first(self) -> None:
        self.query_one(Table).focus()

    @property
    def selected(self) -> str | None:
        return self.query_one(Table).key

    def show_frame(self, frame: Frame) -> None:
        table = self.query_one(Table)
        rows = rows_of(frame.snapshot.engines) if frame.snapshot else []
        text = self.query_one(FilterInput).value
        shown = sort_rows(filter_rows(rows, text), self.sorted_by, self.descending)
        table.set_rows(shown, self.sorted_by, self.descending)
        many = f"{len(shown)} of {len(rows)}" if text else f"{len(rows)}"
        set_titles(table, f"Requests · {many}" + (f" · {text}" if text else ""))
        if self.open:
            timeline = self.query_one(Timeline)
            timeline.choose(table.row)
            if table.key and (frame.now - self.asked_at >= REFETCH_S or frame.now < self.asked_at):
                self._want(table.key)

    def _want(self, request_id: str) -> None:
        self.asked_at = self.frame.now if self.frame else 0.0
        self.post_message(RequestWanted(request_id))

    def _again(self) -> None:
        if self.frame is not None:
            self.show_frame(self.frame)

    def on_row_chosen(self, message: RowChosen) -> None:
        message.stop()
        if message.opened:
            self.open = True
            self.query_one(Timeline).display = True
        if self.open:
            self.query_one(Timeline).choose(self.query_one(Table).row)
            if message.key:
                self._want(message.key)

    def on_sort_asked(self, message: SortAsked) -> None:
        message.stop()
        if message.column == self.sorted_by:
            self.descending = not self.descending
        else:
            self.sorted_by, self.descending = message.column, message.column not in ("id", "state", "client")
        self._again()

    def on_input_changed(self, message: Input.Changed) -> None:
        message.stop()
        self._again()

    def action_filter(self) -> None:
        self.query_one(FilterInput).open()

    def action_sort(self) -> None:
        self.post_message(SortAsked(ORDER[(ORDER.index(self.sorted_by) + 1) % len(ORDER)]))

    def action_turn(self) -> None:
        self.post_message(SortAsked(self.sorted_by))

    def action_abort(self) -> None:
        if self.selected:
            self.post_message(ActionAsked(ABORT, self.selected))

    def action_close(self) -> None:
        """Closes the timeline first, then clears the filter."""
        if self.open:
            self.open = False
            self.query_one(Timeline).display = False
        else:
            self.query_one(FilterInput).clear_all()

    def tell(self, request_id: str, answer: dict[str, Any] | None, trouble: str = "") -> None:
        self.query_one(Timeline).tell(request_id, answer, trouble)
