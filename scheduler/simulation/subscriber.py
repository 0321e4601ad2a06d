"""A router's view of the cache: built from the events alone, it must agree with itself at every moment."""

from __future__ import annotations

from collections.abc import Iterable

from tsd.scheduler.simulation.violation import Violation

Change = tuple[bool, bytes, bytes | None, bytes]


class Subscriber:
    """Which pages were announced and not withdrawn."""

    def __init__(self) -> None:
        self.known: set[bytes] = set()

    def hear(self, changes: Iterable[Change]) -> None:
        """Store and remove events must pair up, and a page come after its parent."""
        for stored, key, parent, _ in changes:
            if not stored:
                if key not in self.known:
                    raise Violation("a page was withdrawn that had not been announced")
                self.known.remove(key)
                continue
            if key in self.known:
                raise Violation("a page was announced twice")
            if parent is not None and parent not in self.known:
                raise Violation("a page was announced before its parent")
            self.known.add(key)

    def clear(self) -> None:
        """The engine started anew: it announces that nothing is cached."""
        self.known.clear()
