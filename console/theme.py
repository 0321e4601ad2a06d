"""The console's Textual themes, one for each palette.

Owns the chrome's colours; content takes its own from `palette.py`.
"""

from __future__ import annotations

from textual.theme import BUILTIN_THEMES, Theme

from tsd.console.flags import THEMES
from tsd.console.palette import PALETTES, Palette

_CHROME = {
    "night": {"background": "#0b0f17", "surface": "#0f1520", "panel": "#182131", "edge": "#2a3650"},
    "day": {"background": "#f7f8fa", "surface": "#ffffff", "panel": "#e9edf2", "edge": "#c5cedb"},
    "contrast": {"background": "#000000", "surface": "#000000", "panel": "#1c1c1c", "edge": "#ffffff"},
    "ansi": {
        "background": "ansi_default",
        "surface": "ansi_default",
        "panel": "ansi_default",
        "edge": "ansi_bright_black",
    },
}


def _colour(style: str, ansi: bool) -> str:
    name = style.split()[-1]
    return f"ansi_{name}" if ansi else name


def make_theme(name: str) -> Theme:
    """The Textual theme of that name."""
    palette: Palette = PALETTES[name]
    ansi = name == "ansi"
    chrome = _CHROME[name]
    # Textual's own style sheets name these in every ANSI theme.
    inherited = BUILTIN_THEMES["ansi-dark"].variables if ansi else {}
    return Theme(
        name=name,
        primary=_colour(palette.accent, ansi),
        secondary=_colour(palette.blue, ansi),
        accent=_colour(palette.accent, ansi),
        warning=_colour(palette.warn, ansi),
        error=_colour(palette.bad, ansi),
        success=_colour(palette.ok, ansi),
        foreground=_colour(palette.text, ansi),
        background=chrome["background"],
        surface=chrome["surface"],
        panel=chrome["panel"],
        boost="ansi_default" if ansi else None,
        dark=name != "day",
        ansi=ansi,
        variables=inherited | {"edge": chrome["edge"], "border-blurred": chrome["edge"]},
    )


def themes() -> list[Theme]:
    return [make_theme(name) for name in THEMES]
