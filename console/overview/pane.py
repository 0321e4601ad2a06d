"""The overview screen. Owns its layout and its keys."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll

from tsd.console.messages import ScreenAsked
from tsd.console.overview.charts import OutputChart, TtftChart
from tsd.console.overview.engines import Engines
from tsd.console.overview.gpus import Gpus
from tsd.console.overview.signals import Signals
from tsd.console.overview.why import Why
from tsd.console.shell.pane import Pane


class OverviewPane(Pane):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "cause", "go to the cause", show=False),
        Binding("j,down", "move(1)", "down", show=False),
        Binding("k,up", "move(-1)", "up", show=False),
        Binding("ctrl+d,pagedown", "move(10)", "page down", show=False),
        Binding("ctrl+u,pageup", "move(-10)", "page up", show=False),
        Binding("g,home", "move(-999)", "top", show=False),
        Binding("G,end", "move(999)", "bottom", show=False),
    ]

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="overview-body") as body:
            body.can_focus = True
            with Horizontal(classes="row top"):
                yield Why(classes="box")
                yield Signals(classes="box")
            with Horizontal(classes="row charts"):
                yield TtftChart(classes="box")
                yield OutputChart(classes="box")
            yield Engines(classes="box")
            yield Gpus(classes="box")

    def focus_first(self) -> None:
        self.query_one("#overview-body").focus()

    def action_move(self, by: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=by, animate=False)

    def action_cause(self) -> None:
        causes = self.frame.explanation.causes if self.frame else ()
        if causes:
            self.post_message(ScreenAsked(causes[0].screen))
