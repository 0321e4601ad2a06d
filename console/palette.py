"""Colours by meaning, one palette a theme. Chosen so that colour is never the only sign: page states, levels and link
states have glyphs of their own, and hues are told apart with any colour vision (blue, orange, bluish green, vermilion).

Knows Rich's style strings and nothing about widgets.
"""

from __future__ import annotations

from dataclasses import dataclass

from tsd.console.explain import Level
from tsd.console.link import LinkState

PAGE_GLYPHS = ("·", "░", "█", "▒", "×", "»")
LEVEL_GLYPHS = {Level.UNKNOWN: "○", Level.OK: "●", Level.WATCH: "▲", Level.BAD: "■"}
LINK_GLYPHS = {
    LinkState.CONNECTING: "○",
    LinkState.LIVE: "●",
    LinkState.STALE: "▲",
    LinkState.DOWN: "■",
    LinkState.REFUSED: "■",
    LinkState.FOREIGN: "■",
    LinkState.GARBAGE: "■",
    LinkState.ENDED: "○",
}


@dataclass(frozen=True)
class Palette:
    """Rich styles. `pages` has one style for each page state, in the order of the wire."""

    text: str
    strong: str
    dim: str
    faint: str
    accent: str
    ok: str
    warn: str
    bad: str
    blue: str
    green: str
    pink: str
    accent_area: str
    bad_area: str
    green_area: str
    header: str
    cursor: str
    brand: str
    tab: str
    tab_on: str
    banner: str
    mark: str
    pages: tuple[str, str, str, str, str, str]

    def level(self, level: Level) -> str:
        return {Level.UNKNOWN: self.dim, Level.OK: self.ok, Level.WATCH: self.warn, Level.BAD: self.bad}[level]

    def link(self, state: LinkState) -> str:
        if state is LinkState.LIVE:
            return self.ok
        if state in (LinkState.CONNECTING, LinkState.ENDED):
            return self.dim
        return self.warn if state is LinkState.STALE else self.bad

    def state(self, state: str | None) -> str:
        """The style of a server, engine or request state."""
        return {
            "ready": self.ok,
            "decoding": self.ok,
            "prefilling": self.blue,
            "prefilled": self.blue,
            "prefetching": self.blue,
            "starting": self.warn,
            "draining": self.warn,
            "paused": self.warn,
            "retracted": self.warn,
            "retracting": self.warn,
            "aborting": self.bad,
            "failed": f"bold {self.bad}",
            "dead": f"bold {self.bad}",
            "stuck": f"bold {self.bad}",
        }.get((state or "").lower(), self.dim)


NIGHT = Palette(
    text="#d5deeb",
    strong="bold #f2f6fc",
    dim="#8b98b0",
    faint="#4d5a73",
    accent="#ffb454",
    ok="#4fd1b5",
    warn="#f2c14e",
    bad="#ff7a5c",
    blue="#6cb6ff",
    green="#4fd1b5",
    pink="#e39ac6",
    accent_area="#6a4c22",
    bad_area="#74382c",
    green_area="#1f5f55",
    header="bold #8b98b0",
    cursor="bold #ffffff on #24405f",
    brand="bold #10151f on #ffb454",
    tab="#8b98b0",
    tab_on="bold #ffb454 on #1d2738",
    banner="bold #1a0f0a on #ff7a5c",
    mark="bold #0b0f17 on #ffffff",
    pages=(
        "#3a4760",
        "#6cb6ff on #142c47",
        "#f5a623 on #f5a623",
        "#35c9a3 on #0e4338",
        "bold #ffffff on #c8451b",
        "bold #ffe3f3 on #8d4a77",
    ),
)

DAY = Palette(
    text="#24303f",
    strong="bold #0c1420",
    dim="#5d6b80",
    faint="#a5b0c0",
    accent="#b45f00",
    ok="#00795f",
    warn="#9a6700",
    bad="#c0330b",
    blue="#0b62b8",
    green="#00795f",
    pink="#9a3d78",
    accent_area="#efcf9f",
    bad_area="#f2b9a6",
    green_area="#a9dccf",
    header="bold #5d6b80",
    cursor="bold #08131f on #cfe2f7",
    brand="bold #ffffff on #b45f00",
    tab="#5d6b80",
    tab_on="bold #b45f00 on #e6eaf0",
    banner="bold #ffffff on #c0330b",
    mark="bold #ffffff on #0c1420",
    pages=(
        "#b4becc",
        "#2f7fc8 on #d3e6f8",
        "#e08a00 on #e08a00",
        "#008f6e on #c4eadf",
        "bold #ffffff on #c0330b",
        "bold #ffffff on #a5588a",
    ),
)

CONTRAST = Palette(
    text="#ffffff",
    strong="bold #ffffff",
    dim="#d0d0d0",
    faint="#909090",
    accent="#ffd000",
    ok="#5ee0ff",
    warn="#ffd000",
    bad="#ff8a5c",
    blue="#8cc8ff",
    green="#5ee0ff",
    pink="#ffa8e0",
    accent_area="#7a6400",
    bad_area="#8a4526",
    green_area="#2a6f80",
    header="bold #ffffff",
    cursor="bold #000000 on #ffd000",
    brand="bold #000000 on #ffd000",
    tab="#d0d0d0",
    tab_on="bold #000000 on #ffffff",
    banner="bold #000000 on #ff8a5c",
    mark="bold #000000 on #ffffff",
    pages=(
        "#707070",
        "#8cc8ff on #002a55",
        "#ffb000 on #ffb000",
        "#00e0a0 on #004a38",
        "bold #ffffff on #d03000",
        "bold #ffffff on #a0307a",
    ),
)

ANSI = Palette(
    text="default",
    strong="bold default",
    dim="dim",
    faint="bright_black",
    accent="yellow",
    ok="cyan",
    warn="yellow",
    bad="bright_red",
    blue="bright_blue",
    green="cyan",
    pink="magenta",
    accent_area="yellow",
    bad_area="bright_red",
    green_area="cyan",
    header="bold",
    cursor="reverse",
    brand="black on yellow",
    tab="default",
    tab_on="bold reverse",
    banner="bold white on red",
    mark="reverse bold",
    pages=(
        "bright_black",
        "bright_blue",
        "yellow",
        "cyan",
        "bold white on red",
        "bold white on magenta",
    ),
)

PALETTES = {"night": NIGHT, "day": DAY, "contrast": CONTRAST, "ansi": ANSI}
