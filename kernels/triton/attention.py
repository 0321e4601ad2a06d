"""Launching `paged.py`: which tiles, how many splits. Reads only shapes and the batch's host-side counts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton

from tsd.kernels.attention.reference import PagedBatch
from tsd.kernels.triton.paged import paged_kernel
from tsd.kernels.triton.target import dependent, dot_precision
from tsd.kernels.triton.workspace import COUNTERS, workspace


@dataclass(frozen=True)
class Tiling:
    """One way to run the kernel: rows of a tile, keys of a block, warps, pipeline stages."""

    rows: int
    keys: int
    warps: int
    stages: int


DECODE = Tiling(rows=16, keys=64, warps=4, stages=3)
PREFILL = Tiling(rows=128, keys=64, warps=8, stages=3)
INVARIANT = Tiling(rows=64, keys=64, warps=4, stages=3)
FLOOR = 128
"""Keys below which a row is not split."""
PROGRAMS = 528
"""Programs that a decode step is cut into: two waves at two to a multiprocessor of an H200."""
MOST_SPLITS = 64


def splits_for(rows: int, num_kv: int) -> int:
    """Most parts of a row: enough for `PROGRAMS` programs when rows are alike, with room for a long one."""
    units = rows * num_kv
    if units > COUNTERS:
        return 1
    wanted = triton.cdiv(2 * PROGRAMS, units)
    return min(MOST_SPLITS, triton.next_power_of_2(wanted))


def run(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    out: torch.Tensor,
    batch: PagedBatch,
    scale: float,
    tiling: Tiling,
    *,
    decode: bool,
    singles: bool = True,
    uniform: bool = False,
    splits: int = 1,
    floor: int = FLOOR,
    target: int = PROGRAMS,
) -> None:
    """One launch over all rows of the batch; see `paged_kernel`."""
    tokens, num_q, head_dim = q.shape
    page_size, num_kv = k_cache.shape[1], k_cache.shape[2]
    group = num_q // num_kv
    rows = batch.num_rows
    padded = triton.next_power_of_2(head_dim)
    block = 1 if decode else tiling.rows // group
    scratch = workspace(q.device)
    partial = scratch.floats(rows * num_kv * splits * tiling.rows * (padded + 2)) if splits > 1 else q
    programs = rows * splits if decode else tokens // block + rows
    pdl, launch = dependent(q.device)
    paged_kernel[(programs * num_kv,)](
        q,
        k_cache,
        v_cache,
        out,
        partial,
        scratch.counters,
        batch.query_start,
        batch.kv_lens,
        batch.page_table,
        batch.page_table.stride(0),
        rows,
        splits,
        scale * math.log2(math.e),
        target,
        HKV=num_kv,
        G=group,
        D=head_dim,
        DP=padded,
        PAGE=page_size,
        TB=block,
        BM=tiling.rows,
        BN=tiling.keys,
        BB=max(256, triton.next_power_of_2(rows)) if splits > 1 else 1,
        SPLIT=splits > 1,
        MOST=MOST_SPLITS,
        FLOOR=floor,
        STAGES=tiling.stages,
        DECODE=decode,
        SINGLES=singles,
        UNIFORM=uniform,
        PRECISION=dot_precision(q.dtype),
        PDL=pdl,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
        **launch,
    )


def paged(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, batch: PagedBatch, scale: float
) -> torch.Tensor:
    """As `attention.reference.paged`. Rows of one token are decoded, split over their keys; longer ones are tiled.

    The host-side counts only decide what is launched: with num_decode > 0 both kernels look at every row, and each
    takes those of its kind, so a graph captured with num_decode = num_rows and max_query_len > 1 serves any mix.
    """
    tokens, num_q, head_dim = q.shape
    out = torch.empty((tokens, num_q * head_dim), dtype=q.dtype, device=q.device)
    group = num_q // k_cache.shape[2]
    if batch.num_decode > 0 or batch.max_query_len == 1:
        splits = splits_for(batch.num_rows, k_cache.shape[2])
        tiling = DECODE if group <= DECODE.rows else Tiling(triton.next_power_of_2(group), 64, 4, 3)
        run(q, k_cache, v_cache, out, batch, scale, tiling, decode=True, splits=splits)
    if batch.max_query_len > 1:
        run(q, k_cache, v_cache, out, batch, scale, PREFILL, decode=False, singles=batch.num_decode == 0)
    return out


def paged_invariant(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, batch: PagedBatch, scale: float
) -> torch.Tensor:
    """As `attention.reference.paged`: one tiling and key order for every token, whatever it is batched with."""
    tokens, num_q, head_dim = q.shape
    out = torch.empty((tokens, num_q * head_dim), dtype=q.dtype, device=q.device)
    run(q, k_cache, v_cache, out, batch, scale, INVARIANT, decode=False, uniform=True)
    return out
