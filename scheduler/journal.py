"""What happened lately, for operators: a bounded list of events and a bounded timeline a request. No policy.

Steady decode never comes here: entries are made when a request changes phase, and when pages are given up in numbers.
"""

from __future__ import annotations

from collections import OrderedDict, deque

MAX_EVENTS = 1024
MAX_ENTRIES = 64
MAX_ENDED = 512

Entry = tuple[float, str, str]
Event = tuple[float, str, int, str, str]


class Journal:
    """Events are (time, kind, request id or -1, cause, text); timeline entries are (time, phase, detail)."""

    def __init__(self) -> None:
        self.events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self.live: dict[int, list[Entry]] = {}
        self.ended: OrderedDict[int, list[Entry]] = OrderedDict()

    def event(self, now: float, kind: str, request_id: int, cause: str, text: str) -> None:
        """Adds to the event list; the oldest falls out."""
        self.events.append((now, kind, request_id, cause, text))

    def note(self, now: float, request_id: int, phase: str, detail: str = "") -> None:
        """Adds to a request's timeline; past the bound the last entry is replaced."""
        entries = self.live.get(request_id)
        if entries is None:
            self.live[request_id] = [(now, phase, detail)]
        elif len(entries) < MAX_ENTRIES:
            entries.append((now, phase, detail))
        else:
            entries[-1] = (now, phase, detail)

    def close(self, now: float, request_id: int, detail: str) -> None:
        """Ends a timeline; it stays readable until MAX_ENDED later ones ended."""
        entries = self.live.pop(request_id, [])
        entries.append((now, "finished", detail))
        self.ended[request_id] = entries
        self.ended.move_to_end(request_id)
        if len(self.ended) > MAX_ENDED:
            self.ended.popitem(last=False)

    def timeline(self, request_id: int) -> list[Entry] | None:
        """The entries of a live or recently ended request."""
        found = self.live.get(request_id) or self.ended.get(request_id)
        return list(found) if found else None

    def take_events(self) -> list[Event]:
        """The events since the last call."""
        out = list(self.events)
        self.events.clear()
        return out
