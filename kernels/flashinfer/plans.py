"""flashinfer's plan of a prefill step: the host shares the step's tiles out among the multiprocessors beforehand.

The plan lies in one device buffer that a CUDA graph reads at a fixed address. Before each step, replayed or not, the
host makes the step's own plan from the lengths it knows and queues its copy on the stream: nothing waits. Where its
parts lie in the buffer depends on the step's bucket alone, so that a graph finds them where it was recorded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tsd.kernels.ahead import Job
from tsd.kernels.flashinfer.ahead import job
from tsd.kernels.flashinfer.library import Module, load
from tsd.kernels.spec import PrefillSite

RING = 4
"""Deeper than the steps that can be on their way, so that a buffer's copy is done when its turn comes again."""
_TILE = 128
"""Queries of one tile, or more."""
_LISTS = 7
"""int32 lists of a plan with an entry for each tile of each head."""
_PROGRAMS = 256
"""More than a GPU has multiprocessors: one list has an entry for each."""
_CAUSAL, _NHD, _NO_WINDOW = 1, 0, -1


class Plans:
    """The plans of one model's prefill steps of at most `max_tokens` tokens and `max_rows` rows."""

    def __init__(self, site: PrefillSite, max_tokens: int, max_rows: int, device: torch.device) -> None:
        self.site = site
        self._device = device
        nbytes = self._nbytes(max_tokens, max_rows)
        self._there = torch.zeros(nbytes, dtype=torch.uint8, device=device)
        self._unused = torch.zeros(1 << 20, dtype=torch.uint8, device=device)
        pinned = device.type == "cuda" and torch.cuda.is_available()
        self._ring = [torch.zeros(nbytes, dtype=torch.uint8, pin_memory=pinned) for _ in range(RING)]
        self._turn = 0
        self._made: dict[tuple[int, int], Any] = {}

    def plan(
        self, tokens: int, rows: int, query_start: np.ndarray, kv_lens: np.ndarray, num_decode: int, table_width: int
    ) -> None:
        """Makes the next step's plan, of a bucket of `tokens` and `rows`. Its first `num_decode` rows are left out.

        query_start int32 [B + 1] and kv_lens int32 [B], B <= rows, are the step's own. Row i's pages are the entries
        from i * table_width on of the page table.
        """
        if self._device.type == "meta":  # kernels are only listed
            return
        module = load(Module(self.site.dtype, self.site.head_dim))
        longer = len(kv_lens) - num_decode
        lens = np.zeros(rows, np.int32)
        lens[:longer] = kv_lens[num_decode:]
        starts = np.full(rows + 1, query_start[-1], np.int32)
        starts[:longer] = query_start[num_decode:-1]
        tables = np.arange(num_decode, num_decode + rows + 1, dtype=np.int32) * np.int32(table_width)
        self._turn = (self._turn + 1) % RING
        self._made[tokens, rows] = module.plan(
            self._unused,
            self._there,
            self._ring[self._turn],
            torch.from_numpy(starts),
            torch.from_numpy(tables),
            torch.from_numpy(lens),
            tokens,
            rows,
            self.site.num_q,
            self.site.num_kv,
            self.site.page_size,
            True,  # for a CUDA graph: the lists' places depend on the bucket alone
            self.site.head_dim,
            self.site.head_dim,
            True,  # causal
            _NO_WINDOW,
        )

    def ahead(self, capability: tuple[int, int]) -> Job:
        """What there is to compile before the first plan, for a GPU of that capability."""
        return job(Module(self.site.dtype, self.site.head_dim), capability)

    def run(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        out: torch.Tensor,
        rows: int,
        page_table: torch.Tensor,
        scale: float,
    ) -> None:
        """Attention of the planned rows into `out` [T, Hq, D]; the others are left alone."""
        if self._device.type == "meta":
            return
        indices = page_table.reshape(-1)
        load(Module(self.site.dtype, self.site.head_dim)).paged_run(
            self._unused,
            self._there,
            self._made[q.shape[0], rows],
            q,
            k_cache,
            v_cache,
            # The four arrays of rows are not read by this kernel: its plan holds them.
            indices,
            indices,
            indices,
            indices,
            out,
            None,
            _CAUSAL,
            _NHD,
            _NO_WINDOW,
            False,
            None,
            None,
            None,
            None,
            None,
            None,
            0.0,
            scale,
            None,
            None,
            None,
            1.0,
            1.0,
            0,
            0,
        )

    def _nbytes(self, tokens: int, rows: int) -> int:
        tiles = -(-tokens // _TILE) + rows
        return 4 * (_LISTS * (tiles * self.site.num_q + 4) + _PROGRAMS + 4) + 4096
