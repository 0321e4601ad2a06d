"""Dialogs over the screens: confirm an action, choose a log level, read the keys."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from tsd.console.actions import LOG_LEVELS, Action
from tsd.console.draw import ink
from tsd.console.palette import PAGE_GLYPHS, Palette
from tsd.console.shell.panel import palette_of
from tsd.console.snapshot import PAGE_STATES


class Confirm(ModalScreen[bool]):
    """Asks before an action. Only `y` does it; Enter alone does not."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "yes"),
        Binding("n,escape,q,enter", "answer(False)", "no"),
    ]

    def __init__(self, action: Action, subject: str | None = None) -> None:
        super().__init__()
        self.action = action
        self.subject = subject

    def compose(self) -> ComposeResult:
        palette = palette_of(self)
        subject = f" {self.subject}" if self.subject else ""
        text = ink(f"{self.action.title}{subject}?\n\n", palette.strong)
        text.append(self.action.warning, palette.text)
        text.append("\n\ny", f"bold {palette.bad}").append(" do it    ", palette.dim)
        text.append("n", f"bold {palette.accent}").append(" leave it", palette.dim)
        with Vertical(classes="dialog"):
            yield Static(text)

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)


class ChooseLevel(ModalScreen[str | None]):
    """Chooses a log level by its number."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(place), f"choose('{name}')", name) for place, name in enumerate(LOG_LEVELS, 1)),
        Binding("escape,q,n", "choose('')", "none"),
    ]

    def compose(self) -> ComposeResult:
        palette = palette_of(self)
        text = ink("Set the server's log level\n\n", palette.strong)
        for place, name in enumerate(LOG_LEVELS, 1):
            text.append(f"{place}", f"bold {palette.accent}").append(f" {name}    ", palette.text)
        text.append("\n\nesc", f"bold {palette.accent}").append(" leave it", palette.dim)
        with Vertical(classes="dialog"):
            yield Static(text)

    def action_choose(self, name: str) -> None:
        self.dismiss(name or None)


KEYS = (
    (
        "Move",
        (
            ("1 … 5", "a screen"),
            ("tab", "the next part of it"),
            ("j k ↓ ↑", "down, up"),
            ("h l ← →", "left, right (page map)"),
            ("g G", "first, last"),
            ("^d ^u", "half a page"),
            ("[ ]", "the previous, the next engine"),
        ),
    ),
    (
        "Look",
        (
            ("/", "filter (esc clears)"),
            ("s S", "sort by the next column, turn the order"),
            ("↵", "open what is selected"),
            ("esc", "close it"),
            ("n N", "the next, the previous bin of another state"),
            ("f", "events of one kind"),
            ("space", "freeze, go on"),
            ("t", "the next theme"),
        ),
    ),
    (
        "Act (each asks first)",
        (
            ("x", "abort the selected request"),
            ("P R", "pause, resume"),
            ("D", "drain"),
            ("F", "flush the cache"),
            ("L", "change the log level"),
            ("^p", "everything by name"),
        ),
    ),
    ("Leave", (("^z", "to the shell, fg returns"), ("q", "quit"))),
)


def help_text(palette: Palette) -> Text:
    text = Text()
    for title, keys in KEYS:
        text.append(f"{title}\n", palette.strong)
        for key, what in keys:
            text.append(f"  {key:<10}", palette.accent).append(f"{what}\n", palette.text)
        text.append("\n")
    text.append("Pages\n", palette.strong).append("  ")
    for glyph, name, style in zip(PAGE_GLYPHS, PAGE_STATES, palette.pages, strict=True):
        text.append(f"{glyph}{glyph}", style).append(f" {name}  ", palette.dim)
    return text


class Help(ModalScreen[None]):
    """Every key."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,enter", "close", "close"),
        Binding("j,down", "move(1)", "down", show=False),
        Binding("k,up", "move(-1)", "up", show=False),
    ]

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog help") as box:
            box.border_title = "Keys"
            box.can_focus = False
            yield Static(help_text(palette_of(self)))

    def action_close(self) -> None:
        self.dismiss(None)

    def action_move(self, by: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=by, animate=False)
