"""How an attention kernel is cut."""

from __future__ import annotations

from typing import NamedTuple


class Tiling(NamedTuple):
    """Rows of a tile, keys of a block, warps, pipeline stages; most registers of a thread, where that is bounded."""

    rows: int
    keys: int
    warps: int
    stages: int
    registers: int = 0
