"""The line that filters a table. Hidden until asked for; Enter keeps the filter, Escape clears it."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widgets import Input


class FilterInput(Input):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "clear_all", "clear", show=False),
        Binding("enter,down", "keep", "keep", show=False),
    ]

    def __init__(self, placeholder: str, *, id: str | None = None) -> None:
        super().__init__(placeholder=placeholder, id=id, compact=True)
        self.cursor_blink = False

    def on_mount(self) -> None:
        self.display = False

    def open(self) -> None:
        self.display = True
        self.focus()

    def action_keep(self) -> None:
        self.display = bool(self.value)
        self._leave()

    def action_clear_all(self) -> None:
        self.clear_all()
        self._leave()

    def clear_all(self) -> None:
        self.value = ""
        self.display = False

    def _leave(self) -> None:
        """Gives the keyboard back to the screen's table."""
        from tsd.console.shell.pane import Pane

        pane = next((node for node in self.ancestors if isinstance(node, Pane)), None)
        if pane is not None:
            pane.focus_first()
