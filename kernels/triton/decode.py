"""Launching decode: `solo.py` for a few rows, `shared.py` for more. Reads only shapes and the batch's host-side counts.

What rows have in common is found by the first layer of a step and kept on its batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton

from tsd.kernels.attention.reference import PagedBatch
from tsd.kernels.triton.shared import share_kernel, shared_kernel
from tsd.kernels.triton.solo import solo_kernel
from tsd.kernels.triton.target import dependent, dot_precision
from tsd.kernels.triton.tiling import Tiling
from tsd.kernels.triton.workspace import COUNTERS, workspace

SOME = Tiling(rows=64, keys=64, warps=4, stages=5)
"""For up to MOST_SOME rows: a tile of 64 queries, so that many rows share a group's keys, and `wgmma` multiplies."""
MANY = Tiling(rows=16, keys=64, warps=4, stages=7)
"""For more, where no row is cut and reading is all there is."""
EXACT = Tiling(rows=16, keys=32, warps=4, stages=3)
"""In float32, which multiplies without tensor cores."""
MOST_SOME = 128
FEW_SHARED, SOME_SHARED, MANY_SHARED = 8, 4, 2
"""Most chunks that a group's common keys are cut into: up to MOST_FEW rows, up to MOST_SOME, beyond."""
MOST_FEW = 32
FLOOR = 128
"""Keys below which a row is not split."""
PROGRAMS = 264
"""Programs that a step is cut into: two to a multiprocessor of an H200."""
MOST_SPLITS = 64
LEAST_KEYS = 1024
"""Keys that a group must be spared, or its rows read their own."""
CALLS = 128
"""Calls (layers) that one look at the page tables serves."""
SOLO_ROWS = 4
"""Most rows that `solo.py` decodes."""
SOLO_KEYS = 64
SOLO_SPLITS = 64
"""Most parts that a row is cut into, over the rows; a long context gets fewer than there is room for."""


@dataclass(frozen=True)
class Rope:
    """What decode needs to take q, k and v straight from the fused projection; as in `rope.rope_write`."""

    cos_sin: torch.Tensor
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    eps: float


def splits_for(rows: int, num_kv: int) -> int:
    """Most parts of a row: enough for `PROGRAMS` programs when rows are alike, with room for a long one among many."""
    units = rows * num_kv
    if units > COUNTERS:
        return 1
    if units >= PROGRAMS // 2:
        return 4 if units <= 4 * PROGRAMS else 2
    return min(MOST_SPLITS, triton.next_power_of_2(PROGRAMS // units))


@dataclass
class Common:
    """What the rows of a batch share: keys of each row, and of each group of `size` neighbours."""

    rows: torch.Tensor
    groups: torch.Tensor
    ready: torch.Tensor
    """int32 [CALLS, groups, heads]: parts of the common keys that a call has written; zeroed once a step."""
    size: int
    calls: int = 0

    def next_ready(self) -> torch.Tensor:
        """A call's own counters."""
        self.calls += 1
        return self.ready[self.calls - 1]


class Cut(NamedTuple):
    """How a batch is decoded: tiling, rows of a group, most chunks of its common keys."""

    tiling: Tiling
    size: int
    shared: int


def cut_for(dtype: torch.dtype, rows: int, group: int) -> Cut:
    """`group` query heads share a KV head."""
    tiling, shared = (SOME, SOME_SHARED) if rows <= MOST_SOME else (MANY, MANY_SHARED)
    if rows <= MOST_FEW:
        shared = FEW_SHARED
    if dtype == torch.float32:
        tiling = EXACT
    heads = triton.next_power_of_2(group)
    tiling = tiling._replace(rows=max(tiling.rows, heads))
    return Cut(tiling, tiling.rows // heads, shared)


def common_of(batch: PagedBatch, size: int, num_kv: int) -> Common:
    """What the batch's rows have in common; found at the first call for it."""
    found: Common | None = getattr(batch, "common", None)
    if found is None or found.size != size or found.calls == CALLS:
        rows, device = batch.num_rows, batch.kv_lens.device
        groups = triton.cdiv(rows, size)
        heads = triton.next_power_of_2(num_kv)
        found = Common(
            torch.empty(rows, dtype=torch.int32, device=device),
            torch.empty(groups, dtype=torch.int32, device=device),
            torch.empty((CALLS, groups, heads), dtype=torch.int32, device=device),
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
            found.ready,
            PAGE=batch.page_size,
            GROUP=size,
            BP=64,
            LEAST=max(1, LEAST_KEYS // batch.page_size),
            CALLS=CALLS,
            HEADS=heads,
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
    beside: bool = False,
) -> None:
    """Rows of one token; the others are left alone. With `rope`, q is qkv [T, (Hq + 2 Hkv) * D].

    `beside`: the launch before this one is a prefill with `late`.
    """
    page_size, num_kv, head_dim = k_cache.shape[1:]
    group = out.shape[1] // head_dim // num_kv
    rows = batch.num_rows
    tiling, size, shared = cut_for(q.dtype, rows, group)
    common = common_of(batch, size, num_kv)
    splits = min(splits_for(rows, num_kv), MOST_SPLITS - shared)
    padded, padded_group = triton.next_power_of_2(head_dim), triton.next_power_of_2(group)
    scratch = workspace(q.device)
    pdl, launch = dependent(q.device)
    chunks = min(rows * splits, rows + triton.cdiv(PROGRAMS, num_kv))
    shared_kernel[((triton.cdiv(rows, size) * shared + chunks) * num_kv,)](
        q,
        k_cache,
        v_cache,
        out,
        scratch.floats(rows * num_kv * (splits + shared) * padded_group * (padded + 2)),
        scratch.counters,
        common.rows,
        common.groups,
        common.next_ready(),
        batch.query_start,
        batch.kv_lens,
        batch.kv_slots,
        batch.page_table,
        batch.page_table.stride(0),
        rows,
        splits,
        scale * math.log2(math.e),
        PROGRAMS,
        FLOOR,
        rope.cos_sin if rope is not None else q,
        rope.q_norm if rope is not None and rope.q_norm is not None else q,
        rope.k_norm if rope is not None and rope.k_norm is not None else q,
        rope.eps if rope is not None else 0.0,
        HKV=num_kv,
        G=group,
        GP=padded_group,
        D=head_dim,
        DP=padded,
        PAGE=page_size,
        BM=tiling.rows,
        BN=tiling.keys,
        BB=max(256, triton.next_power_of_2(rows)),
        GROUP=size,
        SHARED=shared,
        STAGES=tiling.stages,
        ROPE=rope is not None,
        R=rope.cos_sin.shape[1] if rope is not None else 0,
        Q_NORM=rope is not None and rope.q_norm is not None,
        K_NORM=rope is not None and rope.k_norm is not None,
        MOST=MOST_SPLITS,
        BESIDE=beside,
        PRECISION=dot_precision(q.dtype),
        PDL=pdl,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
        maxnreg=tiling.registers or None,
        **launch,
    )


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
    splits = splits or SOLO_SPLITS // triton.next_power_of_2(rows)
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
