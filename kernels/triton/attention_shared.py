"""Launching `shared.py`. What rows have in common is found by the first layer of a step and kept on its batch."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton

from tsd.kernels.attention.reference import PagedBatch
from tsd.kernels.triton import attention
from tsd.kernels.triton.attention import Rope
from tsd.kernels.triton.shared import merge_kernel, share_kernel, shared_kernel
from tsd.kernels.triton.target import dependent, dot_precision
from tsd.kernels.triton.workspace import workspace

ROWS, KEYS, WARPS, STAGES = 64, 64, 4, 5
"""Tile of queries, block of keys, warps and stages, as `attention.DECODE`."""
SHARED = 8
"""Most chunks of common keys."""
LEAST_KEYS = 1024
"""Keys that a group must be spared, or it reads its own."""


class Common(NamedTuple):
    """What the rows of a batch share: keys of each row, and of each group of `size` neighbours."""

    rows: torch.Tensor
    groups: torch.Tensor
    size: int


def common_of(batch: PagedBatch, size: int) -> Common:
    """Finds it at the first call for a batch."""
    found: Common | None = getattr(batch, "common", None)
    if found is None or found.size != size:
        rows, device = batch.num_rows, batch.kv_lens.device
        groups = triton.cdiv(rows, size)
        found = Common(
            torch.empty(rows, dtype=torch.int32, device=device),
            torch.empty(groups, dtype=torch.int32, device=device),
            size,
        )
        pdl, launch = dependent(device)
        share_kernel[(groups,)](
            batch.query_start,
            batch.kv_lens,
            batch.page_table,
            batch.page_table.stride(0),
            rows,
            found.rows,
            found.groups,
            PAGE=batch.page_size,
            GROUP=size,
            BP=64,
            LEAST=max(1, LEAST_KEYS // batch.page_size),
            PDL=pdl,
            num_warps=4,
            **launch,
        )
        batch.common = found  # type: ignore[attr-defined]
    return found


def decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    out: torch.Tensor,
    batch: PagedBatch,
    scale: float,
    rope: Rope | None = None,
) -> None:
    """Rows of one token; the others are left alone. With `rope`, q is qkv [T, (Hq + 2 Hkv) * D]."""
    page_size, num_kv, head_dim = k_cache.shape[1:]
    group = out.shape[1] // head_dim // num_kv
    rows = batch.num_rows
    tile = (16, 32, 4, 3) if q.dtype == torch.float32 else (ROWS, KEYS, WARPS, STAGES)
    tile_rows, keys, warps, stages = max(tile[0], triton.next_power_of_2(group)), *tile[1:]
    size = tile_rows // triton.next_power_of_2(group)
    common = common_of(batch, size)
    splits = min(attention.splits_for(rows, num_kv), attention.MOST_SPLITS - SHARED)
    padded, padded_group = triton.next_power_of_2(head_dim), triton.next_power_of_2(group)
    units = rows * num_kv
    partial = workspace(q.device).floats(units * (splits + SHARED) * padded_group * (padded + 2))
    cut = (rows, splits)
    pdl, launch = dependent(q.device)
    sizes = {
        "HKV": num_kv,
        "G": group,
        "GP": padded_group,
        "D": head_dim,
        "DP": padded,
        "BN": keys,
        "BB": max(256, triton.next_power_of_2(rows)),
        "GROUP": size,
        "SHARED": SHARED,
        "PDL": pdl,
    }
    shared_kernel[((triton.cdiv(rows, size) * SHARED + rows * splits) * num_kv,)](
        q,
        k_cache,
        v_cache,
        out,
        partial,
        common.rows,
        common.groups,
        batch.query_start,
        batch.kv_lens,
        batch.kv_slots,
        batch.page_table,
        batch.page_table.stride(0),
        *cut,
        scale * math.log2(math.e),
        attention.PROGRAMS,
        attention.FLOOR,
        rope.cos_sin if rope is not None else q,
        rope.q_norm if rope is not None and rope.q_norm is not None else q,
        rope.k_norm if rope is not None and rope.k_norm is not None else q,
        rope.eps if rope is not None else 0.0,
        PAGE=page_size,
        BM=tile_rows,
        STAGES=stages,
        ROPE=rope is not None,
        R=rope.cos_sin.shape[1] if rope is not None else 0,
        Q_NORM=rope is not None and rope.q_norm is not None,
        K_NORM=rope is not None and rope.k_norm is not None,
        PRECISION=dot_precision(q.dtype),
        num_warps=warps,
        num_stages=stages,
        **sizes,
        **launch,
    )
    merge_kernel[(units,)](
        out,
        partial,
        common.rows,
        common.groups,
        batch.query_start,
        batch.kv_lens,
        *cut,
        attention.PROGRAMS,
        attention.FLOOR,
        MOST=attention.MOST_SPLITS,
        num_warps=4,
        **sizes,
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
    """As `attention.rope_decode`; a few rows are decoded as there."""
    out = torch.empty((qkv.shape[0], num_q * head_dim), dtype=qkv.dtype, device=qkv.device)
    rope = Rope(cos_sin, q_norm, k_norm, eps)
    few = batch.num_rows <= attention.SOLO_ROWS
    (attention.solo if few else decode)(qkv, k_cache, v_cache, out, batch, scale, rope)
    return out


def paged(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, batch: PagedBatch, scale: float
) -> torch.Tensor:
    """As `attention.paged`."""
    tokens, num_q, head_dim = q.shape
    out = torch.empty((tokens, num_q * head_dim), dtype=q.dtype, device=q.device)
    if batch.num_decode > 0 or batch.max_query_len == 1:
        few = batch.num_rows <= attention.SOLO_ROWS
        (attention.decode if few else decode)(q, k_cache, v_cache, out, batch, scale)
    if batch.max_query_len > 1:
        attention.run(
            q, k_cache, v_cache, out, batch, scale, attention.PREFILL, decode=False, singles=batch.num_decode == 0
        )
    return out
