"""The screen of kernels: what runs each operation, why it was selected, why the others lost, and the graphs."""

from __future__ import annotations

from typing import NamedTuple

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical

from tsd.console.draw import ink
from tsd.console.history import Frame
from tsd.console.messages import RowChosen
from tsd.console.numbers import DASH, us
from tsd.console.palette import Palette
from tsd.console.shell.pane import Pane
from tsd.console.shell.panel import Panel, set_titles, wrap
from tsd.console.shell.table import Cell, Column, Table
from tsd.console.snapshot import KernelChoice

COLUMNS = (
    Column("op", "operation", 21),
    Column("selected", "selected", 20),
    Column("us", "measured", 9, right=True),
    Column("shape", "shape", 0, rank=1),
)


class Row(NamedTuple):
    place: int
    choice: KernelChoice


def key_of(row: Row) -> str:
    return f"{row.choice.op}|{row.choice.shape}|{row.place}"


def cells_of(row: Row, palette: Palette) -> dict[str, Cell]:
    choice = row.choice
    reference = (choice.selected or "").startswith(("reference", "torch_reference"))
    return {
        "op": (choice.op, palette.strong),
        "selected": (choice.selected or DASH, palette.warn if reference else palette.green),
        "us": (us(choice.us), palette.text),
        "shape": (choice.shape or "", palette.dim),
    }


class Choice(Panel):
    """Why the selected kernel won, and why each candidate lost."""

    title = "Why this kernel"

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.choice: KernelChoice | None = None

    def lines(self, frame: Frame, width: int, height: int, palette: Palette) -> list[Text]:
        choice = self.choice
        if choice is None:
            return [ink("No operation is selected.", palette.dim)]
        lines = wrap(choice.op, width, palette.strong)
        lines += wrap(choice.shape or "", width, palette.dim)
        lines += [
            ink(""),
            ink(f"● {choice.selected or DASH}", f"bold {palette.green}").append(f"  {us(choice.us)}", palette.text),
        ]
        lines += wrap(choice.why or "no reason given", width, palette.text, "  ")
        for candidate in choice.candidates:
            if candidate.name == choice.selected:
                continue
            priority = "" if candidate.priority is None else f"  priority {candidate.priority}"
            lines.append(ink(f"○ {candidate.name}", palette.text).append(priority, palette.faint))
            lines += wrap(candidate.lost or "no reason given", width, palette.dim, "  ")
        return lines[: height or None]


class GraphsPanel(Panel):
    title = "Graphs and start"

    def lines(self, frame: Frame, width: int, height: int, palette: Palette) -> list[Text]:
        engine = frame.engine
        if engine is None:
            return []
        graphs = engine.graphs
        compiled = graphs.compilations_after_ready
        text = ink("captured  ", palette.dim)
        text.append(
            DASH if graphs.captured is None else f"{graphs.captured} of {len(graphs.buckets)} buckets", palette.text
        )
        lines = [text]
        lines += wrap(
            " ".join(map(str, graphs.buckets)) or "no graphs on this backend", width, palette.dim, "          "
        )
        after = ink("compiled  ", palette.dim)
        if compiled:
            after.append(f"■ {compiled} after ready (should be 0)", palette.bad)
        else:
            after.append("–" if compiled is None else "● 0 after ready", palette.ok)
        lines.append(after)
        phases = "  ".join(f"{name} {seconds:.1f} s" for name, seconds in engine.phases.items())
        lines += wrap(phases, width, palette.dim) if phases else []
        return lines


class KernelsPane(Pane):
    def compose(self) -> ComposeResult:
        with Horizontal():
            table = Table(COLUMNS, key_of, cells_of, empty="This engine has told of no kernel yet.", id="kernel-table")
            table.add_class("box")
            yield table
            with Vertical(id="kernels-right"):
                yield Choice(classes="box fill")
                yield GraphsPanel(classes="box")

    def focus_first(self) -> None:
        self.query_one(Table).focus()

    def show_frame(self, frame: Frame) -> None:
        engine = frame.engine
        choices = frame.kernels.get(engine.engine, ()) if engine else ()
        table = self.query_one(Table)
        table.set_rows([Row(place, choice) for place, choice in enumerate(choices)])
        name = f" · engine {engine.engine} ({engine.device or '?'}, {engine.dtype or '?'})" if engine else ""
        set_titles(table, f"Kernels{name}")
        self._choose()

    def _choose(self) -> None:
        row = self.query_one(Table).row
        panel = self.query_one(Choice)
        panel.choice = row.choice if row is not None else None
        panel.redraw()

    def on_row_chosen(self, message: RowChosen) -> None:
        message.stop()
        self._choose()
