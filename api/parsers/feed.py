"""Text that arrives in pieces, read by generators that pause for more. Knows no dialect.

A parser is a generator over a `Feed`; it says `yield` when it needs text and reads through the primitives here.
They decide by the text alone, never by where a piece ended: what could still become a marker is held back. Each
character is looked at a bounded number of times, so a parser is linear in its text.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Generator
from typing import TypeVar

T = TypeVar("T")
Reading = Generator[None, None, T]
Sink = Callable[[str], None]

_SPACE = re.compile(r"\s*")


class Feed:
    """What has arrived; `at` is where reading goes on. `closed`: nothing more will come."""

    __slots__ = ("at", "closed", "record", "text")

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.closed = False
        self.record: list[str] | None = None
        """What is read is noted here, while someone may want to give it back."""

    def append(self, text: str) -> None:
        self.text = self.text[self.at :] + text
        self.at = 0

    @property
    def left(self) -> int:
        return len(self.text) - self.at

    def take(self, count: int) -> str:
        taken = self.text[self.at : self.at + count]
        self.at += count
        if self.record is not None:
            self.record.append(taken)
        return taken

    def take_all(self) -> str:
        return self.take(self.left)

    def unread(self, count: int) -> None:
        """Only what was just taken, with no pause between, and while nothing is recorded."""
        self.at -= count


@functools.lru_cache(maxsize=256)
def _finder(markers: tuple[str, ...]) -> re.Pattern[str]:
    """No marker may hold another: the first match would then depend on the cut."""
    assert not any(a != b and a in b for a in markers for b in markers), markers
    return re.compile("|".join(map(re.escape, markers)))


def held_back(text: str, start: int, markers: tuple[str, ...]) -> int:
    """How many characters at the end of text[start:] may be the beginning of a marker."""
    longest = max(map(len, markers)) - 1
    for begin in range(max(start, len(text) - longest), len(text)):
        tail = text[begin:]
        if any(marker.startswith(tail) for marker in markers):
            return len(text) - begin
    return 0


def until(feed: Feed, markers: tuple[str, ...], sink: Sink) -> Reading[str | None]:
    """Passes text on up to the first marker, which is read and returned; None at the end of the text."""
    finder = _finder(markers)
    while True:
        match = finder.search(feed.text, feed.at)
        if match is not None:
            if match.start() > feed.at:
                sink(feed.take(match.start() - feed.at))
            return feed.take(len(match[0]))
        certain = feed.left - (0 if feed.closed else held_back(feed.text, feed.at, markers))
        if certain:
            sink(feed.take(certain))
        if feed.closed:
            return None
        yield


def rest(feed: Feed, sink: Sink) -> Reading[None]:
    """Passes everything on, to the end."""
    while True:
        if feed.left:
            sink(feed.take_all())
        if feed.closed:
            return
        yield


def text_until(feed: Feed, markers: tuple[str, ...]) -> Reading[tuple[str, str | None]]:
    """The text before the first marker, and the marker."""
    parts: list[str] = []
    marker = yield from until(feed, markers, parts.append)
    return "".join(parts), marker


def skip_space(feed: Feed) -> Reading[None]:
    while True:
        match = _SPACE.match(feed.text, feed.at)
        assert match is not None
        if match.end() > feed.at:
            feed.take(match.end() - feed.at)
        if feed.left or feed.closed:
            return
        yield


def peek(feed: Feed) -> Reading[str]:
    """The next character, unread; empty at the end."""
    while not feed.left and not feed.closed:
        yield
    return feed.text[feed.at : feed.at + 1]


def accept(feed: Feed, *choices: str) -> Reading[str | None]:
    """Reads the longest of `choices` that comes next, or nothing."""
    while not feed.closed:
        ahead = feed.text[feed.at :] if feed.left < 64 else feed.text[feed.at : feed.at + 64]
        if not any(len(choice) > len(ahead) and choice.startswith(ahead) for choice in choices):
            break
        yield
    fitting = [choice for choice in choices if feed.text.startswith(choice, feed.at)]
    if not fitting:
        return None
    return feed.take(len(max(fitting, key=len)))
