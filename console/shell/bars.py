"""The bars around every screen: the server's name and health, the tabs, the link banner, the keys."""

from __future__ import annotations

from rich.text import Text
from textual import events

from tsd.console.draw import ink
from tsd.console.history import Frame
from tsd.console.link import LinkState
from tsd.console.messages import ScreenAsked
from tsd.console.numbers import clock, duration, shorten
from tsd.console.palette import LEVEL_GLYPHS, LINK_GLYPHS, Palette
from tsd.console.shell.panel import Panel

SCREENS = (
    ("overview", "Overview"),
    ("pages", "KV pages"),
    ("requests", "Requests"),
    ("events", "Events"),
    ("kernels", "Kernels"),
)

HINTS = {
    "overview": (("[ ]", "engine"), ("↵", "go to cause")),
    "pages": (("hjkl", "move"), ("[ ]", "engine"), ("n", "next state")),
    "requests": (("/", "filter"), ("s", "sort"), ("↵", "timeline"), ("x", "abort")),
    "events": (("/", "filter"), ("f", "kind")),
    "kernels": (("jk", "move"), ("[ ]", "engine")),
}


def both_ends(left: Text, right: Text, width: int) -> Text:
    """`left` and `right` at the two ends of one line; the left one gives way."""
    room = width - len(right) - 1
    if room < 8:
        left.truncate(width, overflow="ellipsis")
        return left
    left.truncate(room, overflow="ellipsis")
    return left.append(" " * (width - len(left) - len(right))).append_text(right)


class TopBar(Panel):
    """One line: what is watched, how it is, since when, and whether the numbers are live."""

    utc = False

    def lines(self, frame: Frame, width: int, height: int, palette: Palette) -> list[Text]:
        text = ink(" tsd ", palette.brand)
        snapshot = frame.snapshot
        if snapshot is not None:
            server = snapshot.server
            text.append(f" {server.model or 'no model'} ", palette.strong)
            glyph = "●" if (server.state or "") == "ready" else "▲"
            text.append(f" {glyph} {server.state or 'unknown'}", palette.state(server.state))
            text.append(f"  up {duration(snapshot.uptime_s)}", palette.dim)
            if width >= 110:
                text.append(f"  {server.name or 'tsd'} {server.version or ''}", palette.faint)
        right = Text()
        link = frame.link
        if width >= 100:
            right.append(f"{shorten(link.url, 40)}  ", palette.faint)
        name = "replay" if frame.replay and link.live else link.state.value
        right.append(f"{LINK_GLYPHS[link.state]} {name}", palette.link(link.state))
        at = snapshot.time if snapshot is not None else frame.now
        right.append(f" {clock(at, self.utc)} ", palette.dim)
        return [both_ends(text, right, width)]


class Tabs(Panel):
    """The screens by number. A click opens one."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.shown = "overview"

    def show(self, name: str) -> None:
        self.shown = name
        self.redraw()

    def _labels(self, frame: Frame) -> list[tuple[str, str]]:
        waiting = frame.moment.waiting if frame.moment else None
        extra = {"requests": f" {waiting} waiting" if waiting else ""}
        return [(name, f" {place} {title}{extra.get(name, '')} ") for place, (name, title) in enumerate(SCREENS, 1)]

    def lines(self, frame: Frame, width: int, height: int, palette: Palette) -> list[Text]:
        text = Text()
        for name, label in self._labels(frame):
            text.append(label, palette.tab_on if name == self.shown else palette.tab)
        right = Text()
        explanation = frame.explanation
        if explanation.causes and frame.snapshot is not None:
            glyph = LEVEL_GLYPHS[explanation.level]
            right.append(f"{glyph} {explanation.causes[0].title} ", palette.level(explanation.level))
        if len(text) + len(right) + 2 > width:
            right = ink(f"{LEVEL_GLYPHS[explanation.level]} ", palette.level(explanation.level))
        return [both_ends(text, right, width)]

    def on_click(self, event: events.Click) -> None:
        if self.frame is None:
            return
        edge = 0
        for name, label in self._labels(self.frame):
            edge += len(label)
            if event.x < edge:
                self.post_message(ScreenAsked(name))
                return


def banner_needed(frame: Frame) -> bool:
    """Whether the link is broken while old numbers are shown."""
    return frame.snapshot is not None and not frame.link.live and frame.link.state is not LinkState.CONNECTING


class Banner(Panel):
    """What is wrong with the link, over the whole width; nothing while it is live."""

    def lines(self, frame: Frame, width: int, height: int, palette: Palette) -> list[Text]:
        link = frame.link
        if frame.snapshot is None:
            return []
        style = palette.banner if link.state not in (LinkState.ENDED, LinkState.STALE) else f"bold {palette.warn}"
        age = f"; last snapshot {duration(max(0.0, frame.now - frame.snapshot.time))} ago" if not frame.replay else ""
        text = f" {LINK_GLYPHS[link.state]} {link.headline[0].upper()}{link.headline[1:]}"
        text += f": {link.detail}{age}" if link.detail else age.replace(";", ":")
        if link.retry_s is not None:
            text += f"; trying again in {link.retry_s:g} s"
        return [ink(text[:width].ljust(width), style)]


class BottomBar(Panel):
    """The keys of this screen, and what makes this console special: read-only, recording, frozen, a demo."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.shown = "overview"

    def show(self, name: str) -> None:
        self.shown = name
        self.redraw()

    def lines(self, frame: Frame, width: int, height: int, palette: Palette) -> list[Text]:
        text = ink(" ")
        hints = (*HINTS[self.shown], ("space", "freeze"), ("^p", "actions"), ("?", "help"), ("q", "quit"))
        for key, name in hints:
            text.append(key, palette.accent).append(f" {name}   " if width >= 100 else f" {name}  ", palette.dim)
        right = Text()
        for flag, name, style in (
            (frame.frozen, "❙❙ frozen", palette.warn),
            (bool(frame.recording), f"● rec {shorten(frame.recording, 24)}", palette.bad),
            (frame.read_only, "read-only", palette.blue),
        ):
            if flag:
                right.append(f"{name} ", style)
        return [both_ends(text, right, width)]


class Notice(Panel):
    """In place of the screens while there is no snapshot: what the console waits for, in plain words."""

    def lines(self, frame: Frame, width: int, height: int, palette: Palette) -> list[Text]:
        link = frame.link
        lines = [
            ink(""),
            ink(
                f"{LINK_GLYPHS[link.state]} {link.headline[0].upper()}{link.headline[1:]}",
                f"bold {palette.link(link.state)}",
            ),
            ink(link.url, palette.text),
            ink(""),
        ]
        if link.detail:
            lines.append(ink(f"{link.detail}.", palette.text))
        if link.advice:
            lines.append(ink(link.advice, palette.dim))
        if link.retry_s is not None:
            lines += [ink(""), ink(f"Attempt {link.attempt}; the next in {link.retry_s:g} s.", palette.faint)]
        lines.append(ink(""))
        return lines
