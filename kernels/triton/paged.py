"""Attention of prefill chunks over the paged cache, and of every token in the batch-invariant mode.

A program owns a tile of TB tokens of one row, with the G query heads that share a KV head folded into the tile's
rows, so that each key and value is read once. Which row a tile belongs to, how long it is and where its pages lie is
read on the device: the grid depends only on shapes, and a CUDA graph can replay it for any lengths.
Rows of one token are decoded by `shared.py`; `fold_blocks` is common to both.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tsd.kernels.triton.pdl import start_next, wait_previous


@triton.jit
def _spots(table, n, first, end, PAGE: tl.constexpr, BN: tl.constexpr, MASKED: tl.constexpr):
    """Cache slots int64 [BN] of keys first .. first + BN - 1; only those below `end` are looked up."""
    if PAGE % BN == 0:
        page = tl.load(table + first // PAGE).to(tl.int64)
        return page * PAGE + first % PAGE + n
    keys = first + n
    if MASKED:
        page = tl.load(table + keys // PAGE, mask=keys < end, other=0).to(tl.int64)
    else:
        page = tl.load(table + keys // PAGE).to(tl.int64)
    return page * PAGE + keys % PAGE


@triton.jit
def fold_blocks(
    q,
    k_head,
    v_head,
    table,
    seen,
    top,
    weight,
    acc,
    begin,
    end,
    limit,
    scale,
    STRIDE: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    PAGE: tl.constexpr,
    BN: tl.constexpr,
    STAGES: tl.constexpr,
    MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Folds keys begin .. end - 1 into (top, weight, acc). MASKED: a tile row sees keys < its `seen`, none >= limit."""
    n = tl.arange(0, BN)
    d = tl.arange(0, DP)
    for first in tl.range(begin, end, BN, num_stages=STAGES):
        spots = _spots(table, n, first, limit, PAGE, BN, MASKED) * STRIDE
        if MASKED:
            live = first + n < limit
            k = tl.load(k_head + spots[None, :] + d[:, None], mask=live[None, :] & (d < D)[:, None], other=0.0)
            v = tl.load(v_head + spots[:, None] + d[None, :], mask=live[:, None] & (d < D)[None, :], other=0.0)
        elif D == DP:
            k = tl.load(k_head + spots[None, :] + d[:, None])
            v = tl.load(v_head + spots[:, None] + d[None, :])
        else:
            k = tl.load(k_head + spots[None, :] + d[:, None], mask=(d < D)[:, None], other=0.0)
            v = tl.load(v_head + spots[:, None] + d[None, :], mask=(d < D)[None, :], other=0.0)
        scores = tl.dot(q, k.to(q.dtype), input_precision=PRECISION) * scale
        if MASKED:
            scores = tl.where((first + n)[None, :] < seen[:, None], scores, -float("inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        shift = tl.where(higher == -float("inf"), 0.0, higher)
        chances = tl.exp2(scores - shift[:, None])
        fade = tl.exp2(top - shift)
        weight = weight * fade + tl.sum(chances, 1)
        acc = tl.dot(chances.to(q.dtype), v.to(q.dtype), acc * fade[:, None], input_precision=PRECISION)
        top = higher
    return top, weight, acc


@triton.jit(do_not_specialize=["table_stride", "rows"], do_not_specialize_on_alignment=["query_start", "kv_lens"])
def paged_kernel(
    q,
    k_cache,
    v_cache,
    out,
    query_start,
    kv_lens,
    page_table,
    table_stride,
    rows,
    scale,
    HKV: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    PAGE: tl.constexpr,
    TB: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    STAGES: tl.constexpr,
    SINGLES: tl.constexpr,
    UNIFORM: tl.constexpr,
    LATE: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """q [T, HKV*G, D], out [T, HKV*G*D], caches [pages, PAGE, HKV, D]; scale includes log2 e.

    Grid tiles * HKV over rows of more than one token (SINGLES: of any), tiles >= T // TB + rows.
    UNIFORM: one masked loop, so that a token's bits do not depend on its place in a tile.
    LATE: the kernel after this one is let go when the one before has ended, so that it may run beside this one.
    """
    if not LATE:
        start_next(PDL)
    program = tl.program_id(0)
    head = program % HKV
    place = program // HKV
    low = 0
    high = rows
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(query_start + middle) // TB + middle <= place:
            low = middle
        else:
            high = middle
    row = low
    tile = place - (tl.load(query_start + row) // TB + row)
    start = tl.load(query_start + row)
    count = tl.load(query_start + row + 1) - start
    length = tl.load(kv_lens + row)
    mine = tile * TB < count
    if not SINGLES:
        mine = mine & (count > 1)
    table = page_table + row.to(tl.int64) * table_stride  # type: ignore[attr-defined]
    k_head = k_cache + head * D
    v_head = v_cache + head * D
    wait_previous(PDL)
    if LATE:
        start_next(PDL)
    if mine:
        tile = tl.cdiv(count, TB) - 1 - tile
        m = tl.arange(0, BM)
        d = tl.arange(0, DP)
        token = tile * TB + m // G
        live = (m < TB * G) & (token < count)
        spot = ((start + token) * (HKV * G) + head * G + m % G).to(tl.int64)[:, None] * D + d[None, :]
        live_spot = live[:, None] & (d < D)[None, :]
        queries = tl.load(q + spot, mask=live_spot, other=0.0)
        seen = tl.where(live, length - count + token + 1, 0)
        oldest = length - count + tile * TB
        begin = 0
        end = tl.minimum(length, oldest + TB)
        top = tl.full([BM], -float("inf"), tl.float32)
        weight = tl.zeros([BM], tl.float32)
        acc = tl.zeros([BM, DP], tl.float32)
        if not UNIFORM:
            whole = (oldest + 1) // BN * BN
            top, weight, acc = fold_blocks(
                queries, k_head, v_head, table, seen, top, weight, acc, 0, whole, whole, scale,
                HKV * D, D, DP, PAGE, BN, STAGES, False, PRECISION,
            )  # fmt: skip
            begin = whole
        top, weight, acc = fold_blocks(
            queries, k_head, v_head, table, seen, top, weight, acc, begin, end, end, scale,
            HKV * D, D, DP, PAGE, BN, STAGES, True, PRECISION,
        )  # fmt: skip
        safe = tl.where(weight > 0.0, weight, 1.0)
        tl.store(out + spot, (acc / safe[:, None]).to(out.dtype.element_ty), mask=live_spot)
