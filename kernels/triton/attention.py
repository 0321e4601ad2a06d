"""Launching `paged.py`: which tiles, how many splits. Reads only shapes and the batch's host-side counts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import triton

from tsd.kernels.attention.reference import PagedBatch
from tsd.kernels.triton.paged import paged_kernel
from tsd.kernels.triton.solo import solo_kernel
from tsd.kernels.triton.target import dependent, dot_precision
from tsd.kernels.triton.workspace import COUNTERS, workspace


@dataclass(frozen=True)
class Tiling:
    """One way to run the kernel: rows of a tile, keys of a block, warps, pipeline stages."""

    rows: int
    keys: int
    warps: int
    stages: int


@dataclass(frozen=True)
class Rope:
    """What decode needs to take q, k and v straight from the fused projection; as in `rope.rope_write`."""

    cos_sin: torch.Tensor
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    eps: float


DECODE = Tiling(rows=64, keys=64, warps=4, stages=5)
CROWD = Tiling(rows=16, keys=64, warps=4, stages=7)
"""Decode of so many rows that none is split."""
PREFILL = Tiling(rows=64, keys=64, warps=4, stages=5)
INVARIANT = Tiling(rows=64, keys=64, warps=4, stages=5)
EXACT = Tiling(rows=16, keys=32, warps=4, stages=3)
"""All of the above in float32, which multiplies without tensor cores."""
FLOOR = 128
"""Keys below which a row is not split."""
PROGRAMS = 264
"""Programs that a decode step is cut into: two to a multiprocessor of an H200."""
AHEAD = 0
"""Keys of a program that are prefetched while the kernel before drains: not worth it once a program has many."""
MOST_SPLITS = 64
SOLO_ROWS = 4
"""Most rows that `solo.py` decodes."""
SOLO_KEYS = 64


def splits_for(rows: int, num_kv: int) -> int:
    """Most parts of a row: enough for `PROGRAMS` programs when rows are alike, with room for a long one among many."""
    units = rows * num_kv
    if units > COUNTERS:
        return 1
    if units >= PROGRAMS // 2:
        return 4 if units <= 4 * PROGRAMS else 2
    return min(MOST_SPLITS, triton.next_power_of_2(PROGRAMS // units))


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
    ahead: int = AHEAD,
    rope: Rope | None = None,
) -> None:
    """One launch over all rows of the batch; see `paged_kernel`. With `rope`, q is qkv [T, (Hq + 2 Hkv) * D]."""
    page_size, num_kv, head_dim = k_cache.shape[1:]
    tokens = q.shape[0]
    num_q = out.shape[1] // head_dim
    if q.dtype == torch.float32:
        tiling = replace(EXACT, rows=max(EXACT.rows, triton.next_power_of_2(num_q // num_kv)))
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
        floor,
        batch.kv_slots,
        rope.cos_sin if rope is not None else q,
        rope.q_norm if rope is not None and rope.q_norm is not None else q,
        rope.k_norm if rope is not None and rope.k_norm is not None else q,
        rope.eps if rope is not None else 0.0,
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
        AHEAD=ahead if decode else 0,
        STAGES=tiling.stages,
        DECODE=decode,
        SINGLES=singles,
        UNIFORM=uniform,
        ROPE=rope is not None,
        R=rope.cos_sin.shape[1] if rope is not None else 0,
        Q_NORM=rope is not None and rope.q_norm is not None,
        K_NORM=rope is not None and rope.k_norm is not None,
        PRECISION=dot_precision(q.dtype),
        PDL=pdl,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
        **launch,
    )


def decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    out: torch.Tensor,
    batch: PagedBatch,
    scale: float,
    rope: Rope | None = None,
) -> None:
    """Rows of one token; the others are left alone."""
    num_q = out.shape[1] // k_cache.shape[3]
    splits = splits_for(batch.num_rows, k_cache.shape[2])
    tiling = (
        CROWD if batch.num_rows * k_cache.shape[2] > 4 * PROGRAMS and num_q <= CROWD.rows * k_cache.shape[2] else DECODE
    )
    run(q, k_cache, v_cache, out, batch, scale, tiling, decode=True, splits=splits, rope=rope)


def solo(
    qkv: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    out: torch.Tensor,
    batch: PagedBatch,
    scale: float,
    rope: Rope,
    keys: int = SOLO_KEYS,
    warps: int = 4,
    splits: int = 0,
) -> None:
    """One launch of `solo_kernel`; see there. `splits` 0 chooses."""
    page_size, num_kv, head_dim = k_cache.shape[1:]
    group = out.shape[1] // head_dim // num_kv
    rows = batch.num_rows
    splits = splits or MOST_SPLITS // triton.next_power_of_2(rows)
    padded, padded_group = triton.next_power_of_2(head_dim), triton.next_power_of_2(group)
    scratch = workspace(qkv.device)
    pdl, launch = dependent(qkv.device)
    solo_kernel[(rows * splits * num_kv,)](
        qkv,
        k_cache,
        v_cache,
        out,
        scratch.floats(rows * num_kv * splits * padded_group * (padded + 2)),
        scratch.counters,
        batch.query_start,
        batch.kv_lens,
        batch.kv_slots,
        batch.page_table,
        batch.page_table.stride(0),
        splits,
        scale * math.log2(math.e),
        rope.cos_sin,
        rope.q_norm if rope.q_norm is not None else qkv,
        rope.k_norm if rope.k_norm is not None else qkv,
        rope.eps,
        HKV=num_kv,
        G=group,
        GP=padded_group,
        BM=max(16, padded_group),
        D=head_dim,
        DP=padded,
        PAGE=page_size,
        BN=keys,
        MOST=MOST_SPLITS,
        R=rope.cos_sin.shape[1],
        Q_NORM=rope.q_norm is not None,
        K_NORM=rope.k_norm is not None,
        PRECISION=dot_precision(qkv.dtype),
        PDL=pdl,
        num_warps=warps,
        **launch,
    )


def rope_decode(
    qkv: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    batch: PagedBatch,
    cos_sin: torch.Tensor,
    scale: float,
    *,
    num_q: int,
    num_kv: int,
    head_dim: int,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 0.0,
) -> torch.Tensor:
    """`rope_write`, then `paged`, in one launch, for a batch whose rows all have one token: [T, num_q * head_dim].

    A row's token is at position kv_lens - 1; rows whose kv_slot is -1 write nothing.
    """
    out = torch.empty((qkv.shape[0], num_q * head_dim), dtype=qkv.dtype, device=qkv.device)
    if batch.num_rows <= SOLO_ROWS:
        solo(qkv, k_cache, v_cache, out, batch, scale, Rope(cos_sin, q_norm, k_norm, eps))
        return out
    decode(qkv, k_cache, v_cache, out, batch, scale, Rope(cos_sin, q_norm, k_norm, eps))
    return out


def paged(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, batch: PagedBatch, scale: float
) -> torch.Tensor:
    """As `attention.reference.paged`. Rows of one token are decoded, split over their keys; longer ones are tiled.

    The host-side counts only decide what is launched: with num_decode > 0 both kernels look at every row, and each
    takes those of its kind, so a graph captured with num_decode = num_rows and max_query_len > 1 serves any mix.
    """
    tokens, num_q, head_dim = q.shape
    out = torch.empty((tokens, num_q * head_dim), dtype=q.dtype, device=q.device)
    if batch.num_decode > 0 or batch.max_query_len == 1:
        decode(q, k_cache, v_cache, out, batch, scale)
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
