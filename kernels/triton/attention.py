"""Attention over the paged cache: launching `paged.py` for prefill, `decode.py` for the rows of one token."""

from __future__ import annotations

import math

import torch
import triton

from tsd.kernels.attention.reference import PagedBatch
from tsd.kernels.triton.decode import common_of, cut_for, decode
from tsd.kernels.triton.paged import paged_kernel
from tsd.kernels.triton.target import dependent, dot_precision
from tsd.kernels.triton.tiling import Tiling

PREFILL = Tiling(rows=64, keys=64, warps=4, stages=5)
EXACT = Tiling(rows=16, keys=32, warps=4, stages=3)
"""In float32, which multiplies without tensor cores."""


def prefill(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    out: torch.Tensor,
    batch: PagedBatch,
    scale: float,
    tiling: Tiling = PREFILL,
    *,
    singles: bool = False,
    uniform: bool = False,
    late: bool = False,
) -> None:
    """One launch over the rows of more than one token, with `singles` over all; see `paged_kernel`."""
    page_size, num_kv, head_dim = k_cache.shape[1:]
    tokens = q.shape[0]
    group = out.shape[1] // head_dim // num_kv
    if q.dtype == torch.float32:
        tiling = EXACT._replace(rows=max(EXACT.rows, triton.next_power_of_2(group)))
    block = tiling.rows // group
    pdl, launch = dependent(q.device)
    paged_kernel[((tokens // block + batch.num_rows) * num_kv,)](
        q,
        k_cache,
        v_cache,
        out,
        batch.query_start,
        batch.kv_lens,
        batch.page_table,
        batch.page_table.stride(0),
        batch.num_rows,
        scale * math.log2(math.e),
        HKV=num_kv,
        G=group,
        D=head_dim,
        DP=triton.next_power_of_2(head_dim),
        PAGE=page_size,
        TB=block,
        BM=tiling.rows,
        BN=tiling.keys,
        STAGES=tiling.stages,
        SINGLES=singles,
        UNIFORM=uniform,
        LATE=late,
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
    singles = batch.num_decode > 0 or batch.max_query_len == 1
    longer = batch.max_query_len > 1
    if singles:
        # Found before prefill: beside it, decode does not wait for what went right before.
        cut = cut_for(q.dtype, batch.num_rows, num_q // k_cache.shape[2])
        common_of(batch, cut.size, k_cache.shape[2])
    if longer:
        prefill(q, k_cache, v_cache, out, batch, scale, singles=not singles, late=singles)
    if singles:
        decode(q, k_cache, v_cache, out, batch, scale, beside=longer)
    return out


def paged_invariant(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, batch: PagedBatch, scale: float
) -> torch.Tensor:
    """As `attention.reference.paged`: one tiling and key order for every token, whatever it is batched with."""
    tokens, num_q, head_dim = q.shape
    out = torch.empty((tokens, num_q * head_dim), dtype=q.dtype, device=q.device)
    prefill(q, k_cache, v_cache, out, batch, scale, singles=True, uniform=True)
    return out
