"""The screen of KV pages."""

from __future__ import annotations

from typing import Any

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical

from tsd.console.history import Frame
from tsd.console.messages import BinChosen
from tsd.console.pages.detail import BinDetail
from tsd.console.pages.map import PageMap
from tsd.console.pages.tiers import Legend, Prefixes, Tiers
from tsd.console.shell.pane import Pane


class PagesPane(Pane):
    def compose(self) -> ComposeResult:
        with Horizontal():
            with Vertical(id="pages-left"):
                yield PageMap(id="page-map", classes="box")
                yield BinDetail(id="bin-detail", classes="box")
            with Vertical(id="pages-right"):
                yield Legend(classes="box")
                yield Tiers(classes="box")
                yield Prefixes(classes="box fill")

    def focus_first(self) -> None:
        self.query_one(PageMap).focus()

    def show_frame(self, frame: Frame) -> None:
        page_map = self.query_one(PageMap)
        page_map.frame = frame
        if frame.engine is not None:
            self.query_one(BinDetail).choose(frame.engine.engine, page_map.bin, page_map.bin_pages, page_map.state)

    def on_bin_chosen(self, message: BinChosen) -> None:
        page_map = self.query_one(PageMap)
        self.query_one(BinDetail).choose(message.engine, message.page_bin, page_map.bin_pages, page_map.state)

    def tell(self, engine: int, page_bin: int, answer: dict[str, Any] | None, trouble: str = "") -> None:
        self.query_one(BinDetail).tell(engine, page_bin, answer, trouble)
