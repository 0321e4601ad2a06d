"""Token embedding: the first kernel of a step, hence the one that lets its successor go late (see `pdl.py`)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tsd.kernels.triton.pdl import start_next, wait_previous
from tsd.kernels.triton.target import dependent
from tsd.kernels.weight import Weight


@triton.jit(do_not_specialize_on_alignment=["ids"])
def lookup_kernel(ids, table, y, K, BK: tl.constexpr, PDL: tl.constexpr):
    wait_previous(PDL)
    start_next(PDL)
    row = tl.program_id(0).to(tl.int64)
    token = tl.load(ids + row).to(tl.int64)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        tl.store(y + row * K + k, tl.load(table + token * K + k, mask=k < K, other=0.0), mask=k < K)


def lookup(ids: torch.Tensor, weight: Weight, *, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """As `embedding.reference.lookup`, dense tables only."""
    table = weight.tensors["w"]
    y = torch.empty((ids.shape[0], table.shape[1]), dtype=table.dtype, device=table.device)
    block = min(2048, triton.next_power_of_2(table.shape[1]))
    pdl, launch = dependent(ids.device)
    lookup_kernel[(ids.shape[0],)](ids, table, y, table.shape[1], block, PDL=pdl, num_warps=4, **launch)
    return y
