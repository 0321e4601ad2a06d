"""What the host sends to the device for a step, and what comes back: pinned blocks, one copy each way.

A block is a run of 32-bit words: page-table changes first, then one word a row of each field. The device has one
such block, at fixed addresses that graphs may record; the host has a ring of them, because the copy of one step may
still be waiting while the next is written. A ring is deeper than the steps that can be on their way at once, so that
a block's copy is long done when its turn comes again. Knows layouts and copies, nothing of what the words mean.
"""

from __future__ import annotations

import numpy as np
import torch

from tsd.engine.executor.wake import Landing

UPDATES = 256
"""Page-table changes that one block carries; more go ahead in blocks of their own."""
DEPTH = 4
"""Of each ring: two steps on their way, one being written, one to spare."""

ROW_FIELDS = ("slots", "starts", "temperature", "top_k", "top_p", "min_p")
_WIDE_FIELDS = ("seeds", "token_index")
_GREEDY_FIELDS = 2
"""A greedy step needs no more than the first two fields."""


def pinned(size: int | tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Zeroed int32 words of host memory from which a copy to `device` does not wait."""
    return torch.zeros(size, dtype=torch.int32, pin_memory=device.type == "cuda")


class StagingBlock:
    """Views into one block of words, on either side."""

    def __init__(self, words: torch.Tensor, rows: int) -> None:
        self.words = words
        self.cells = words[:UPDATES]
        self.pages = words[UPDATES : 2 * UPDATES]
        self.fields: dict[str, torch.Tensor] = {}
        offset = 2 * UPDATES
        for name in ROW_FIELDS:
            field = words[offset : offset + rows]
            self.fields[name] = field if name in ("slots", "starts", "top_k") else field.view(torch.float32)
            offset += rows
        for name in _WIDE_FIELDS:
            self.fields[name] = words[offset : offset + 2 * rows].view(torch.int64)
            offset += 2 * rows


class Staging:
    """The ring of host blocks and the device's one block. `rows` is the most rows of a step (even)."""

    def __init__(self, rows: int, padding_cell: int, device: torch.device, landing: Landing) -> None:
        size = 2 * UPDATES + (len(ROW_FIELDS) + 2 * len(_WIDE_FIELDS)) * rows
        self._bytes = 4 * size
        self._greedy_bytes = 4 * (2 * UPDATES + _GREEDY_FIELDS * rows)
        self._landing = landing
        self.device = StagingBlock(torch.zeros(size, dtype=torch.int32, device=device), rows)
        self._target = self.device.words.data_ptr()
        self._host = [StagingBlock(pinned(size, device), rows) for _ in range(DEPTH)]
        self._sources = [block.words.data_ptr() for block in self._host]
        self._views = [
            {name: field.numpy() for name, field in block.fields.items()}
            | {"cells": block.cells.numpy(), "pages": block.pages.numpy()}
            for block in self._host
        ]
        self._turn = 0
        self._padding_cell = padding_cell
        for view in self._views:
            view["cells"][:] = padding_cell
        self._dirty = [0] * DEPTH

    def next(self) -> dict[str, np.ndarray]:
        """The next host block's fields, free to be written; it changes no page table yet."""
        self._turn = (self._turn + 1) % DEPTH
        view = self._views[self._turn]
        if dirty := self._dirty[self._turn]:
            view["cells"][:dirty] = self._padding_cell
            self._dirty[self._turn] = 0
        return view

    def update(self, view: dict[str, np.ndarray], cells: np.ndarray, pages: np.ndarray) -> None:
        """Puts at most UPDATES page-table changes into the block that `next` gave."""
        count = len(cells)
        view["cells"][:count] = cells
        view["pages"][:count] = pages
        self._dirty[self._turn] = count

    def send(self, greedy: bool) -> None:
        """Queues the copy of the block that `next` gave."""
        size = self._greedy_bytes if greedy else self._bytes
        self._landing.copy(self._target, self._sources[self._turn], size)


class TokenRing:
    """Sampled tokens on their way back: the device's one row of them, and a ring of pinned ones."""

    def __init__(self, rows: int, device: torch.device, landing: Landing) -> None:
        self.device = torch.zeros(rows, dtype=torch.int32, device=device)
        self._host = pinned((DEPTH, rows), device)
        self.views = self._host.numpy()
        self._landing = landing
        self._source = self.device.data_ptr()
        self._targets = [self._host[turn].data_ptr() for turn in range(DEPTH)]
        self._turn = 0

    def next(self) -> int:
        self._turn = (self._turn + 1) % DEPTH
        return self._turn

    def bring_back(self, turn: int, rows: int) -> None:
        """Queues the copy of `rows` tokens, and the wake-up of the loop."""
        if rows:
            self._landing.copy(self._targets[turn], self._source, 4 * rows)
        self._landing.signal()
