"""One of the five screens: hands the frame to its panels, and only while it is in sight."""

from __future__ import annotations

from textual.containers import Vertical
from textual.reactive import reactive

from tsd.console.history import Frame
from tsd.console.shell.panel import Panel


class Pane(Vertical):
    """Subclasses compose panels and may do more in `show_frame`."""

    frame: reactive[Frame | None] = reactive(None, init=False, repaint=False)

    def watch_frame(self, frame: Frame | None) -> None:
        if frame is None or not self.is_mounted:
            return
        for panel in self.query(Panel):
            panel.frame = frame
        self.show_frame(frame)

    def show_frame(self, frame: Frame) -> None:
        """What the panels cannot do alone."""

    def focus_first(self) -> None:
        """Takes the keyboard when the screen opens."""
        self.focus()
