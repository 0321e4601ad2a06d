"""What the host sends to the device for a step: one pinned block, one copy.

A block is a run of 32-bit words: page-table changes first, then one word a row of each field. The device has one
such block, at fixed addresses that graphs may record; the host has a ring of them, because the copy of one step may
still be waiting while the next is written. Knows layouts and copies, nothing of what the words mean.
"""

from __future__ import annotations

import numpy as np
import torch

UPDATES = 256
"""Page-table changes that one block carries; more go ahead in blocks of their own."""

ROW_FIELDS = ("slots", "starts", "temperature", "top_k", "top_p", "min_p")
_WIDE_FIELDS = ("seeds", "token_index")
GREEDY_FIELDS = 2
"""A greedy step needs no more than the first two fields."""


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

    @staticmethod
    def size(rows: int) -> int:
        return 2 * UPDATES + (len(ROW_FIELDS) + 2 * len(_WIDE_FIELDS)) * rows

    @staticmethod
    def greedy_size(rows: int) -> int:
        return 2 * UPDATES + GREEDY_FIELDS * rows


class Staging:
    """The ring of host blocks and the device's one block. `rows` is the most rows of a step (even)."""

    def __init__(self, rows: int, depth: int, padding_cell: int, device: torch.device) -> None:
        self.rows = rows
        size = StagingBlock.size(rows)
        self.device = StagingBlock(torch.zeros(size, dtype=torch.int32, device=device), rows)
        self._host = [StagingBlock(torch.zeros(size, dtype=torch.int32, pin_memory=True), rows) for _ in range(depth)]
        self._views = [
            {name: field.numpy() for name, field in block.fields.items()}
            | {"cells": block.cells.numpy(), "pages": block.pages.numpy()}
            for block in self._host
        ]
        self._copied = [torch.cuda.Event() for _ in range(depth)]
        self._turn = 0
        self._padding_cell = padding_cell

    def next(self) -> dict[str, np.ndarray]:
        """The next host block's fields, free to be written."""
        self._turn = (self._turn + 1) % len(self._host)
        self._copied[self._turn].synchronize()
        view = self._views[self._turn]
        view["cells"][:] = self._padding_cell
        return view

    def send(self, greedy: bool) -> None:
        """Queues the copy of the block that `next` gave on the current stream."""
        size = StagingBlock.greedy_size(self.rows) if greedy else StagingBlock.size(self.rows)
        self.device.words[:size].copy_(self._host[self._turn].words[:size], non_blocking=True)
        self._copied[self._turn].record()


class TokenRing:
    """Sampled tokens on their way back: a ring of device and pinned rows, and the stream that carries them."""

    def __init__(self, rows: int, depth: int, device: torch.device) -> None:
        self.device = torch.zeros((depth, rows), dtype=torch.int32, device=device)
        self.host = torch.zeros((depth, rows), dtype=torch.int32, pin_memory=True)
        self.views = self.host.numpy()
        self.stream = torch.cuda.Stream(device)
        self.depth = depth
        self._turn = 0

    def next(self) -> int:
        self._turn = (self._turn + 1) % self.depth
        return self._turn

    def bring_back(self, turn: int, rows: int) -> None:
        """Queues the copy to the host behind what the current stream has been given so far."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self.host[turn, :rows].copy_(self.device[turn, :rows], non_blocking=True)
