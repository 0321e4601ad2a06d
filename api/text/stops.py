"""Stop strings in streamed text. A pure function of the text: any chunking stops at the same place.

The match that *ends* first wins; among those, the longest. Text that could still become a match is held back.
"""

from __future__ import annotations


class StopMatcher:
    """Feeds on deltas. Once `matched` is set, nothing more comes out."""

    __slots__ = ("_firsts", "_held", "_include", "_longest", "_stops", "matched")

    def __init__(self, stops: tuple[str, ...], include: bool = False) -> None:
        """`stops` are not empty strings. `include`: the matched string stays in the text."""
        self._stops = stops
        self._firsts = frozenset(stop[0] for stop in stops)
        self._longest = max(map(len, stops))
        self._held = ""
        self._include = include
        self.matched: str | None = None

    def push(self, delta: str) -> str:
        """The text that is now certain to be before any stop string."""
        if self.matched is not None:
            return ""
        text = self._held + delta
        best_end, best = len(text) + 1, ""
        for stop in self._stops:
            at = text.find(stop, max(0, len(self._held) - len(stop) + 1), best_end)
            if at >= 0 and (at + len(stop) < best_end or len(stop) > len(best)):
                best_end, best = at + len(stop), stop
        if best:
            self.matched, self._held = best, ""
            return text[: best_end if self._include else best_end - len(best)]
        keep = self._hold_from(text)
        self._held = text[keep:]
        return text[:keep]

    def finish(self) -> str:
        """What was held back for a match that never came."""
        held, self._held = self._held, ""
        return held

    def _hold_from(self, text: str) -> int:
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            if text[start] in self._firsts:
                tail = text[start:]
                if any(stop.startswith(tail) for stop in self._stops):
                    return start
        return len(text)
