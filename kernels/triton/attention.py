"""Attention over the paged cache: launching `paged.py` for prefill, `chunks.py` where it has few tiles with many keys,
`decode.py` for the rows of one token."""

from __future__ import annotations

import math

import torch
import triton

from tsd.kernels.attention.reference import PagedBatch
from tsd.kernels.triton.chunks import chunks_kernel
from tsd.kernels.triton.decode import PROGRAMS, common_of, cut_for, decode
from tsd.kernels.triton.paged import paged_kernel
from tsd.kernels.triton.target import dependent, dot_precision
from tsd.kernels.triton.tiling import Tiling
from tsd.kernels.triton.workspace import workspace

PREFILL = Tiling(rows=64, keys=64, warps=4, stages=5)
EXACT = Tiling(rows=16, keys=32, warps=4, stages=3)
"""In float32, which multiplies without tensor cores."""
FEW_TILES = PROGRAMS // 2
"""Tiles times KV heads up to which their keys are dealt out: more have a multiprocessor each."""
BESIDE = 128
"""Programs of `chunks_kernel` beside decode, which takes the other places: one to a multiprocessor."""
LEAST_BLOCKS = 4
"""Blocks of keys below which a program is not worth its start."""


def _exact(tiling: Tiling, dtype: torch.dtype, group: int) -> Tiling:
    """The tiling that serves `dtype` in the place of `tiling`, with room for a token's `group` heads."""
    return EXACT._replace(rows=max(EXACT.rows, triton.next_power_of_2(group))) if dtype == torch.float32 else tiling


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
    tiling = _exact(tiling, q.dtype, group)
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


def few_tiles(tokens: int, group: int, num_kv: int, dtype: torch.dtype) -> bool:
    """Whether that many tokens, in a chunk, are too few tiles to fill the GPU."""
    return tokens * num_kv <= FEW_TILES * max(1, _exact(PREFILL, dtype, group).rows // group)


def chunks(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    out: torch.Tensor,
    batch: PagedBatch,
    scale: float,
    tiling: Tiling = PREFILL,
    *,
    singles: bool = False,
    late: bool = False,
    beside: int = 0,
    programs: int = 0,
    least: int = LEAST_BLOCKS,
) -> None:
    """As `prefill`, for few tiles with many keys; see `chunks_kernel`."""
    page_size, num_kv, head_dim = k_cache.shape[1:]
    group = out.shape[1] // head_dim // num_kv
    tiling = _exact(tiling, q.dtype, group)
    padded = triton.next_power_of_2(head_dim)
    programs = programs or PROGRAMS
    scratch = workspace(q.device, "chunks")  # decode, which may run beside, has another
    pdl, launch = dependent(q.device)
    chunks_kernel[(programs,)](
        q,
        k_cache,
        v_cache,
        out,
        scratch.floats(2 * programs * tiling.rows * (padded + 2)),
        scratch.counters,
        batch.query_start,
        batch.kv_lens,
        batch.page_table,
        batch.page_table.stride(0),
        batch.num_rows,
        scale * math.log2(math.e),
        beside or BESIDE,
        least,
        HKV=num_kv,
        G=group,
        D=head_dim,
        DP=padded,
        PAGE=page_size,
        TB=tiling.rows // group,
        BM=tiling.rows,
        BN=tiling.keys,
        BB=max(256, triton.next_power_of_2(batch.num_rows)),
        STAGES=tiling.stages,
        SINGLES=singles,
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
        few = few_tiles(tokens, num_q // k_cache.shape[2], k_cache.shape[2], q.dtype)
        run = chunks if few else prefill
        run(q, k_cache, v_cache, out, batch, scale, singles=not singles, late=singles)
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
