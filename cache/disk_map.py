"""Which page keys the disk tier holds, least recently used first. Knows nothing about files or requests.

A key is `storing` until its write landed, then readable. The map is a claim, not a proof: a block may be gone or
rotten, which the read reports and which makes the key a miss.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable


class DiskMap:
    """At most `capacity` keys."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.blocks: OrderedDict[bytes, bool] = OrderedDict()
        self.storing = 0

    def __len__(self) -> int:
        return len(self.blocks)

    def __contains__(self, key: bytes) -> bool:
        return key in self.blocks

    def readable(self, key: bytes) -> bool:
        """Whether the key's block is written."""
        return self.blocks.get(key, False)

    def adopt(self, keys: Iterable[bytes]) -> int:
        """Takes in blocks that were on disk before; returns how many are new."""
        before = len(self.blocks)
        for key in keys:
            if len(self.blocks) >= self.capacity:
                break
            self.blocks.setdefault(key, True)
        return len(self.blocks) - before

    def reserve(self, key: bytes) -> list[bytes] | None:
        """Makes room for a key about to be written: the keys to discard for it, or None when all are being written."""
        if key in self.blocks or self.capacity == 0:
            return None
        evicted: list[bytes] = []
        while len(self.blocks) >= self.capacity:
            if self.storing >= len(self.blocks):
                return None
            oldest, written = next(iter(self.blocks.items()))
            if not written:
                self.blocks.move_to_end(oldest)
                continue
            del self.blocks[oldest]
            evicted.append(oldest)
        self.blocks[key] = False
        self.storing += 1
        return evicted

    def stored(self, key: bytes, ok: bool) -> None:
        """A write landed or failed."""
        if key not in self.blocks or self.blocks[key]:
            return
        self.storing -= 1
        if ok:
            self.blocks[key] = True
        else:
            del self.blocks[key]

    def touch(self, key: bytes) -> None:
        self.blocks.move_to_end(key)

    def drop(self, key: bytes) -> None:
        """The block turned out missing or rotten."""
        if self.blocks.get(key, False):
            del self.blocks[key]

    def clear(self) -> list[bytes]:
        """Forgets every written key and returns them; writes on their way stay."""
        gone = [key for key, written in self.blocks.items() if written]
        for key in gone:
            del self.blocks[key]
        return gone
