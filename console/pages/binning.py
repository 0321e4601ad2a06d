"""From bins of pages to cells on the screen. Pure arithmetic.

The server sends at most 4,096 bins; a screen may have fewer cells. Cell c of C shows the bins from c·B/C up to
(c+1)·B/C, rounded down, so that the cells fill the screen:

    bins   0 1 2 | 3 4 | 5 6 7 | 8 9          10 bins on 4 cells
    cells    0      1      2      3
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from tsd.console.snapshot import FREE


class Grid(NamedTuple):
    """States of the cells, the first bin of each, and how many cells make a row."""

    states: bytes
    starts: list[int]
    columns: int
    bins: int

    @property
    def per_cell(self) -> float:
        """Bins a cell stands for, on average."""
        return self.bins / len(self.states) if self.states else 1.0

    def cell_of(self, page_bin: int) -> int:
        return max(0, bisect_right(self.starts, page_bin) - 1)

    def bins_of(self, cell: int) -> range:
        end = self.starts[cell + 1] if cell + 1 < len(self.starts) else self.bins
        return range(self.starts[cell], end)


def grid(states: bytes, columns: int, rows: int) -> Grid:
    """The bins' states on at most `columns` × `rows` cells; a cell shows its most used state, a tie the rarer kind."""
    columns, rows = max(1, columns), max(1, rows)
    bins = len(states)
    cells = min(bins, columns * rows)
    if cells == bins:
        return Grid(states, list(range(bins)), columns, bins)
    starts = [cell * bins // cells for cell in range(cells)]
    ends = [*starts[1:], bins]
    shown = bytes(most_used(states[start:end]) for start, end in zip(starts, ends, strict=True))
    return Grid(shown, starts, columns, bins)


def most_used(states: bytes) -> int:
    """The most frequent state; of equally frequent ones the highest number, which is the rarer kind."""
    best, most = FREE, 0
    for state in set(states):
        found = states.count(state)
        if found > most or (found == most and state > best):
            best, most = state, found
    return best


def next_other(states: bytes, place: int, step: int) -> int:
    """The next place, going by `step`, whose state differs from the one at `place`; wraps around; `place` if none."""
    size = len(states)
    if not size:
        return 0
    at = place
    for _ in range(size):
        at = (at + step) % size
        if states[at] != states[place]:
            return at
    return place
