"""A router's view of the cache: built from the events alone, it must agree with itself at every moment."""

from __future__ import annotations

from collections.abc import Iterable

from tsd.cache.events import DEVICE, Change
from tsd.scheduler.simulation.violation import Violation


class Subscriber:
    """Which pages were announced and not withdrawn, in each tier."""

    def __init__(self) -> None:
        self.known: set[tuple[int, bytes]] = set()

    def hear(self, changes: Iterable[Change]) -> None:
        """Store and remove events must pair up, and a page on the device come after its parent."""
        for tier, stored, key, parent, _ in changes:
            if not stored:
                if (tier, key) not in self.known:
                    raise Violation("a page was withdrawn that had not been announced")
                self.known.remove((tier, key))
                continue
            if (tier, key) in self.known:
                raise Violation("a page was announced twice")
            if tier == DEVICE and parent is not None and (tier, parent) not in self.known:
                raise Violation("a page was announced before its parent")
            self.known.add((tier, key))

    def clear(self) -> None:
        """The engine started anew: it announces that nothing is cached."""
        self.known.clear()
