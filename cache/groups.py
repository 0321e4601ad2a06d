"""Cache groups: the kinds of per-layer state a model keeps, and the longest prefix that all of them can serve.

A hybrid model may skip a prefix only up to a boundary that every group agrees on: full attention needs every page
before it, a sliding window only those that cover its window, a recurrent state a snapshot exactly there. Pure functions
over what is cached; knows nothing about where pages are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import lcm


class GroupKind(Enum):
    """How a group's state depends on the tokens before."""

    FULL = "full"
    SLIDING = "sliding"
    STATE = "state"


@dataclass(frozen=True)
class CacheGroup:
    """`page_size` tokens a page (for STATE: the distance of snapshots); `window` tokens back for SLIDING."""

    name: str
    kind: GroupKind
    page_size: int
    window: int = 0

    def __post_init__(self) -> None:
        if self.page_size < 1 or (self.kind is GroupKind.SLIDING) != (self.window > 0):
            raise ValueError(f"cache group {self.name}: page size {self.page_size}, window {self.window}")

    def pages_needed(self, boundary: int) -> range:
        """The pages that must be there for computing to go on at token `boundary`, a multiple of page_size.

        STATE: the one snapshot taken after the page that ends there.
        """
        pages = boundary // self.page_size
        if self.kind is GroupKind.FULL:
            return range(pages)
        if self.kind is GroupKind.STATE:
            return range(max(0, pages - 1), pages)
        # The next token attends to itself and window - 1 before it.
        first = max(0, boundary - (self.window - 1)) // self.page_size
        return range(first, pages) if self.window > 1 else range(pages, pages)


@dataclass(frozen=True)
class GroupHits:
    """Which pages of a prompt a group has cached, page by page from its start."""

    group: CacheGroup
    present: Sequence[bool]

    def best(self, limit: int) -> int:
        """The last boundary at or before token `limit` from which this group can go on; 0 needs nothing."""
        size = self.group.page_size
        boundary = min(limit // size, len(self.present)) * size
        while boundary > 0:
            needed = self.group.pages_needed(boundary)
            order = needed if self.group.kind is GroupKind.FULL else reversed(needed)
            missing = next((page for page in order if not self.present[page]), None)
            if missing is None:
                return boundary
            # Every boundary between the missing page and here needs it too.
            boundary = missing * size
        return 0


def joint_boundary(hits: Sequence[GroupHits], num_tokens: int) -> int:
    """The longest prefix, in tokens, that every group can serve; at least one of `num_tokens` is always recomputed.

    Each group's answer only ever shortens the prefix, and a shorter prefix that all accept ends the search.
    """
    if not hits:
        return 0
    step = lcm(*(one.group.page_size for one in hits))
    boundary = (num_tokens - 1) // step * step
    while boundary > 0:
        agreed = min(one.best(boundary) for one in hits) // step * step
        if agreed == boundary:
            return boundary
        boundary = agreed
    return 0
