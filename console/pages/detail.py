"""The selected bin: its pages, who owns them, and their keys."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rich.text import Text

from tsd.console.draw import ink
from tsd.console.history import Frame
from tsd.console.numbers import DASH, count
from tsd.console.palette import PAGE_GLYPHS, Palette
from tsd.console.shell.panel import Panel
from tsd.console.snapshot import PAGE_STATES


class BinDetail(Panel):
    title = "Selected"

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.engine = 0
        self.bin = 0
        self.bin_pages = 1
        self.state = 0
        self.answer: dict[str, Any] | None = None
        self.trouble = ""

    def choose(self, engine: int, page_bin: int, bin_pages: int, state: int) -> None:
        """Another bin; what was known of the last one is forgotten."""
        if (engine, page_bin) != (self.engine, self.bin):
            self.answer, self.trouble = None, ""
        self.engine, self.bin, self.bin_pages, self.state = engine, page_bin, bin_pages, state
        self.redraw()

    def tell(self, engine: int, page_bin: int, answer: dict[str, Any] | None, trouble: str = "") -> None:
        """The server's answer; one for another bin is too late and dropped."""
        if (engine, page_bin) == (self.engine, self.bin):
            self.answer, self.trouble = answer, trouble
            self.redraw()

    def lines(self, frame: Frame, width: int, height: int, palette: Palette) -> list[Text]:
        first = self.bin * self.bin_pages
        state = min(self.state, len(PAGE_STATES) - 1)
        pages = f"page {first:,}" if self.bin_pages == 1 else f"pages {first:,} to {first + self.bin_pages - 1:,}"
        head = ink(PAGE_GLYPHS[state] * 2, palette.pages[state])
        head.append(f" {pages}", palette.strong).append(f"  mostly {PAGE_STATES[state]}  bin {self.bin}", palette.dim)
        if self.trouble:
            return [head, ink(f"The owner is not known: {self.trouble}", palette.warn)]
        if self.answer is None:
            return [head, ink("↵ asks for its owner and key", palette.dim)]
        return [head, *summary(self.answer, width, palette)][: height or None]


def summary(answer: dict[str, Any], width: int, palette: Palette) -> list[Text]:
    """Owners with their page counts, then the first keys. Tolerates any shape of answer."""
    found = answer.get("pages")
    pages = [page for page in found if isinstance(page, dict)] if isinstance(found, list) else []
    if not pages:
        return [ink("No page of this bin is in use.", palette.dim)]
    owners = Counter(str(_owner(page)) for page in pages if _owner(page) not in (None, "", []))
    line = ink("owner  ", palette.dim)
    if owners:
        for place, (owner, number) in enumerate(owners.most_common(3)):
            line.append("   " if place else "").append(owner, palette.accent)
            line.append(f" × {number}" if number > 1 else "", palette.dim)
        if len(owners) > 3:
            line.append(f"   and {len(owners) - 3} more", palette.dim)
    else:
        line.append(
            "nobody: kept for the next request with this prefix" if any(p.get("key") for p in pages) else "nobody",
            palette.text,
        )
    keys = [str(page["key"]) for page in pages if page.get("key")]
    refs = [page["refs"] for page in pages if isinstance(page.get("refs"), int)]
    second = ink("key    ", palette.dim).append(keys[0][:32] if keys else DASH, palette.blue)
    if len(keys) > 1:
        second.append(f" and {len(keys) - 1} more", palette.dim)
    if refs:
        second.append(f"   refs {count(max(refs))}", palette.text)
    return [line, second]


def _owner(page: dict[str, Any]) -> Any:
    owner = page.get("owner", page.get("owners"))
    return ", ".join(map(str, owner)) if isinstance(owner, list) else owner
