"""Attention over the paged cache: one kernel for decode, prefill chunks and the batch-invariant mode.

A program owns a tile of TB tokens of one row, with the G query heads that share a KV head folded into the tile's
rows, so that each key and value is read once. Which row a tile belongs to, how long it is and where its pages lie is
read on the device: the grid depends only on shapes, and a CUDA graph can replay it for any lengths.

With SPLIT the keys of a row are cut into chunks, one program each: as many as balance the whole batch's work
over `target` programs. Each leaves (m, l, acc) and the last to arrive merges them in order.

With ROPE (decode only) q comes straight from the fused projection: each program norms and turns its own queries, and
the one that owns the row's last key also norms, turns and writes that key and its value, as `rope.py` does.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tsd.kernels.triton.pdl import prefetch_l2, start_next, wait_previous
from tsd.kernels.triton.rope import turned


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
def _blocks(
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


@triton.jit
def _finish(spots, acc, weight, live):
    """Writes acc / weight; rows that saw no key hold zeros."""
    seen = tl.where(weight > 0.0, weight, 1.0)
    tl.store(spots, (acc / seen[:, None]).to(spots.dtype.element_ty), mask=live)


@triton.jit(
    do_not_specialize=["table_stride", "rows", "splits", "target", "floor"],
    do_not_specialize_on_alignment=["query_start", "kv_lens", "kv_slots"],
)
def paged_kernel(
    q,
    k_cache,
    v_cache,
    out,
    partial,
    arrivals,
    query_start,
    kv_lens,
    page_table,
    table_stride,
    rows,
    splits,
    scale,
    target,
    floor,
    kv_slots,
    cos_sin,
    q_norm,
    k_norm,
    eps,
    HKV: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    PAGE: tl.constexpr,
    TB: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BB: tl.constexpr,
    SPLIT: tl.constexpr,
    MOST: tl.constexpr,
    AHEAD: tl.constexpr,
    STAGES: tl.constexpr,
    DECODE: tl.constexpr,
    SINGLES: tl.constexpr,
    UNIFORM: tl.constexpr,
    ROPE: tl.constexpr,
    R: tl.constexpr,
    Q_NORM: tl.constexpr,
    K_NORM: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """q [T, HKV*G, D], out [T, HKV*G*D], caches [pages, PAGE, HKV, D]; scale includes log2 e.

    DECODE: grid rows * splits * HKV; only rows of one token. Otherwise grid tiles * HKV over rows of more than one
    token (SINGLES: of any), tiles >= T // TB + rows. UNIFORM: one masked loop, so that a token's bits do not depend on
    its place in a tile. partial float32 [rows * HKV, splits, BM, DP + 2], arrivals int32 [rows * HKV];
    BB >= rows, MOST >= splits. ROPE: q is qkv [T, (HKV*G + 2*HKV) * D], cos_sin float32 [positions, R].
    AHEAD keys of a decoded chunk are prefetched before the wait on the previous kernel; the caches hold no key of
    this step yet, so only the last key of a row could be stale, and prefetching is not reading.
    """
    start_next(PDL)
    program = tl.program_id(0)
    head = program % HKV
    place = program // HKV
    split = 0
    tile = 0
    if DECODE:
        split = place % splits
        row = place // splits
    else:
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
    chunk = length
    active = 1
    if SPLIT:
        b = tl.arange(0, BB)
        work = tl.sum(tl.load(kv_lens + b, mask=b < rows, other=0), 0) * HKV
        quota = tl.maximum(tl.cdiv(work, target), floor)
        wanted = tl.minimum(tl.maximum((length + quota // 2) // quota, 1), splits)
        chunk = tl.cdiv(tl.cdiv(length, wanted), BN) * BN
        active = tl.cdiv(length, tl.maximum(chunk, 1))
    if DECODE:
        mine = (count == 1) & (split < active)
    elif SINGLES:
        mine = tile * TB < count
    else:
        mine = (count > 1) & (tile * TB < count)
    table = page_table + row.to(tl.int64) * table_stride
    k_head = k_cache + head * D
    v_head = v_cache + head * D
    if DECODE and AHEAD > 0:  # noqa: SIM102 (the first is known when compiling, the second when running)
        if mine:
            keys = split * chunk + tl.arange(0, AHEAD)
            keys = tl.minimum(keys, tl.minimum(split * chunk + chunk, length) - 1)
            near = (tl.load(table + keys // PAGE).to(tl.int64) * PAGE + keys % PAGE) * (HKV * D)
            for line in tl.static_range(0, D, 64):
                prefetch_l2(k_head + near + line, PDL)
                prefetch_l2(v_head + near + line, PDL)
    wait_previous(PDL)
    if mine:
        if not DECODE:
            tile = tl.cdiv(count, TB) - 1 - tile
        m = tl.arange(0, BM)
        d = tl.arange(0, DP)
        token = tile * TB + m // G
        live = (m < TB * G) & (token < count)
        spot = ((start + token) * (HKV * G) + head * G + m % G).to(tl.int64)[:, None] * D + d[None, :]
        live_spot = live[:, None] & (d < D)[None, :]
        if ROPE:
            heads = q + (start.to(tl.int64) * (HKV * (G + 2)) + head * G + m % G)[:, None] * D
            queries = turned(heads, q_norm, cos_sin, length - 1, d, d < D, D, R, eps, Q_NORM)
            queries = queries.to(q.dtype.element_ty)
            slot = tl.load(kv_slots + start).to(tl.int64)
            if (split == active - 1) & (slot >= 0):
                one = tl.arange(0, 1)
                fresh = q + (start.to(tl.int64) * (HKV * (G + 2)) + HKV * G + head + one)[:, None] * D
                place_new = (slot * HKV + one)[:, None] * D + d[None, :]
                key = turned(fresh, k_norm, cos_sin, length - 1, d, d < D, D, R, eps, K_NORM)
                value = tl.load(fresh + HKV * D + d[None, :], mask=(d < D)[None, :], other=0.0)
                tl.store(k_head + place_new, key.to(k_cache.dtype.element_ty), mask=(d < D)[None, :])
                tl.store(v_head + place_new, value.to(v_cache.dtype.element_ty), mask=(d < D)[None, :])
            tl.debug_barrier()
        else:
            queries = tl.load(q + spot, mask=live_spot, other=0.0)
        seen = tl.where(live, length - count + token + 1, 0)
        oldest = length - count + tile * TB
        begin = split * chunk
        end = tl.minimum(tl.minimum(begin + chunk, length), oldest + TB)
        top = tl.full([BM], -float("inf"), tl.float32)
        weight = tl.zeros([BM], tl.float32)
        acc = tl.zeros([BM, DP], tl.float32)
        if not DECODE and not UNIFORM:
            whole = (oldest + 1) // BN * BN
            top, weight, acc = _blocks(
                queries, k_head, v_head, table, seen, top, weight, acc, 0, whole, whole, scale,
                HKV * D, D, DP, PAGE, BN, STAGES, False, PRECISION,
            )  # fmt: skip
            begin = whole
        top, weight, acc = _blocks(
            queries, k_head, v_head, table, seen, top, weight, acc, begin, end, end, scale,
            HKV * D, D, DP, PAGE, BN, STAGES, True, PRECISION,
        )  # fmt: skip
        if SPLIT and active > 1:
            SIZE: tl.constexpr = BM * (DP + 2)
            unit = row * HKV + head
            parts = partial + unit.to(tl.int64) * (splits * SIZE)
            cell = m[:, None] * DP + d[None, :]
            tl.store(parts + split * SIZE + cell, acc, mask=live[:, None])
            tl.store(parts + split * SIZE + BM * DP + m, top, mask=live)
            tl.store(parts + split * SIZE + BM * (DP + 1) + m, weight, mask=live)
            tl.debug_barrier()
            if tl.atomic_add(arrivals + unit, 1, sem="acq_rel") == active - 1:
                tl.debug_barrier()
                s = tl.arange(0, MOST)
                tops = tl.load(
                    parts + s[:, None] * SIZE + BM * DP + m[None, :],
                    mask=(s < active)[:, None] & live[None, :],
                    other=-float("inf"),
                    cache_modifier=".cg",
                )
                top = tl.max(tops, 0)
                top = tl.where(live, top, 0.0)
                acc = tl.zeros([BM, DP], tl.float32)
                weight = tl.zeros([BM], tl.float32)
                for part in tl.range(0, active, loop_unroll_factor=4):
                    there = parts + part * SIZE
                    share = tl.load(there + BM * DP + m, mask=live, other=-float("inf"), cache_modifier=".cg")
                    share = tl.exp2(share - top)
                    mass = tl.load(there + BM * (DP + 1) + m, mask=live, other=0.0, cache_modifier=".cg")
                    weight += share * mass
                    values = tl.load(there + cell, mask=live[:, None], other=0.0, cache_modifier=".cg")
                    acc += share[:, None] * values
                _finish(out + spot, acc, weight, live_spot)
                tl.store(arrivals + unit, 0)
        else:
            _finish(out + spot, acc, weight, live_spot)
