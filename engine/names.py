"""What fronts call the requests of this engine: a bounded memory of names. Knows no request and no channel.

A request's key here means nothing to operators: several fronts number their requests alike. Events, timelines and
snapshots therefore speak of the name, which is the same whichever front is asked.
"""

from __future__ import annotations

from collections import OrderedDict

KEPT = 8192


class RequestNames:
    """Of live requests and of the last that ended. Sequences of one client request share its name."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._names: OrderedDict[int, str] = OrderedDict()
        self._keys: dict[str, list[int]] = {}

    def learn(self, key: int, name: str) -> None:
        if not name or key in self._names:
            return
        self._names[key] = name
        self._keys.setdefault(name, []).append(key)
        if len(self._names) > self._kept:
            old, gone = self._names.popitem(last=False)
            keys = self._keys[gone]
            keys.remove(old)
            if not keys:
                del self._keys[gone]

    def of(self, key: int) -> str | int | None:
        """The name, or the key of a request that has none; None for an event of no request (a key under 0)."""
        return None if key < 0 else self._names.get(key, key)

    def keys_of(self, name: str) -> list[int]:
        """Every sequence of that name, in the order of their arrival."""
        return list(self._keys.get(name, ()))
