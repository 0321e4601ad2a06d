"""Decode of a few rows, where latency is all there is: norms, rope, cache write and attention in one launch.

Keys and values that are in the cache before this step do not depend on the kernel before, so each program loads its
first block of them into registers before the wait; after it come only the row's new q, k and v. The new key meets the
queries in registers and need not be read back. Little shared memory is used: a kernel that takes it from the L1 cache
slows the weight streams of its neighbours.

Rows are cut into at most `splits` chunks of whole blocks; the last program of a row and head merges the parts in order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tsd.kernels.triton.merge import merge_parts
from tsd.kernels.triton.pdl import start_next, wait_previous
from tsd.kernels.triton.rope import turned


@triton.jit
def _load_block(k_head, v_head, table, first, end, STRIDE: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
                PAGE: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """Keys and values first .. first + BN - 1 [BN, DP]; those from `end` on are zero."""
    keys = first + tl.arange(0, BN)
    d = tl.arange(0, DP)
    live = keys < end
    spots = tl.load(table + keys // PAGE, mask=live, other=0).to(tl.int64) * PAGE + keys % PAGE
    cells = spots[:, None] * STRIDE + d[None, :]
    mask = live[:, None] & (d < D)[None, :]
    return tl.load(k_head + cells, mask=mask, other=0.0), tl.load(v_head + cells, mask=mask, other=0.0)


@triton.jit
def _fold(queries, k, v, live, top, weight, acc, scale, PRECISION: tl.constexpr):
    """Takes a block of keys into the running maximum [BM], weight [BM] and weighted values [BM, DP]."""
    scores = tl.dot(queries, tl.trans(k).to(queries.dtype), input_precision=PRECISION) * scale
    scores = tl.where(live[None, :], scores, -float("inf"))
    higher = tl.maximum(top, tl.max(scores, 1))
    shift = tl.where(higher == -float("inf"), 0.0, higher)
    chances = tl.exp2(scores - shift[:, None])
    fade = tl.exp2(top - shift)
    weight = weight * fade + tl.sum(chances, 1)
    acc = tl.dot(chances.to(queries.dtype), v.to(queries.dtype), acc * fade[:, None], input_precision=PRECISION)
    return higher, weight, acc


@triton.jit(
    do_not_specialize=["table_stride", "splits"],
    do_not_specialize_on_alignment=["query_start", "kv_lens", "kv_slots"],
)
def solo_kernel(
    qkv,
    k_cache,
    v_cache,
    out,
    partial,
    arrivals,
    query_start,
    kv_lens,
    kv_slots,
    page_table,
    table_stride,
    splits,
    scale,
    cos_sin,
    q_norm,
    k_norm,
    eps,
    HKV: tl.constexpr,
    G: tl.constexpr,
    GP: tl.constexpr,
    BM: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    PAGE: tl.constexpr,
    BN: tl.constexpr,
    MOST: tl.constexpr,
    R: tl.constexpr,
    Q_NORM: tl.constexpr,
    K_NORM: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """qkv [T, (HKV*G + 2*HKV) * D], out [T, HKV*G*D], caches [pages, PAGE, HKV, D]; scale includes log2 e.

    Grid rows * splits * HKV. partial float32 [rows * HKV, splits, GP, DP + 2], arrivals int32 [rows * HKV];
    MOST >= splits, GP >= G, BM >= max(16, G) and DP >= D are powers of two.
    """
    start_next(PDL)
    program = tl.program_id(0)
    head = program % HKV
    split = program // HKV % splits
    row = program // HKV // splits
    start = tl.load(query_start + row)
    count = tl.load(query_start + row + 1) - start
    length = tl.load(kv_lens + row)
    slot = tl.load(kv_slots + start).to(tl.int64)
    old = tl.maximum(length - 1, 0)
    # A part costs a sixth of a block's time to add: that many parts, near the square root, end first.
    blocks = tl.cdiv(old, BN)
    wanted = tl.minimum((2.4 * tl.sqrt(blocks.to(tl.float32))).to(tl.int32) + 1, splits)
    chunk = tl.maximum(tl.cdiv(blocks, wanted), 1) * BN
    active = tl.maximum(tl.cdiv(old, chunk), 1)
    begin = split * chunk
    end = tl.minimum(begin + chunk, old)
    table = page_table + row.to(tl.int64) * table_stride
    k_head = k_cache + head * D
    v_head = v_cache + head * D
    n = tl.arange(0, BN)
    d = tl.arange(0, DP)
    live_d = d < D
    k, v = _load_block(k_head, v_head, table, begin, end, HKV * D, D, DP, PAGE, BN)
    wait_previous(PDL)
    if (count == 1) & (length > 0) & (split < active):
        one = tl.arange(0, 1)[:, None]
        heads = qkv + start.to(tl.int64) * (HKV * (G + 2) * D)
        newest = split == active - 1
        fresh = heads + (HKV * G + head + one) * D
        new_k = turned(fresh, k_norm, cos_sin, old.to(tl.int64), d, live_d, D, R, eps, K_NORM)
        new_k = new_k.to(k_cache.dtype.element_ty)
        new_v = tl.load(fresh + HKV * D + d[None, :], mask=live_d[None, :], other=0.0).to(v_cache.dtype.element_ty)
        if newest & (slot >= 0):
            spot = (slot * HKV + one) * D + d[None, :]
            tl.store(k_head + spot, new_k, mask=live_d[None, :])
            tl.store(v_head + spot, new_v, mask=live_d[None, :])
        m = tl.arange(0, BM)
        live = m < G
        queries = turned(
            heads + (head * G + m % G)[:, None] * D, q_norm, cos_sin, old.to(tl.int64), d, live_d, D, R, eps, Q_NORM
        ).to(qkv.dtype.element_ty)
        score = tl.sum(queries.to(tl.float32) * new_k.to(tl.float32), 1) * scale
        top = tl.where(newest, score, -float("inf"))
        weight = tl.where(newest, tl.full([BM], 1.0, tl.float32), 0.0)
        acc = tl.where(newest, tl.zeros([BM, DP], tl.float32) + new_v.to(tl.float32), 0.0)
        top, weight, acc = _fold(queries, k, v, begin + n < end, top, weight, acc, scale, PRECISION)
        for first in tl.range(begin + BN, end, BN, num_stages=1):
            k, v = _load_block(k_head, v_head, table, first, end, HKV * D, D, DP, PAGE, BN)
            top, weight, acc = _fold(queries, k, v, first + n < end, top, weight, acc, scale, PRECISION)
        here = out + (start * HKV + head).to(tl.int64) * (G * D)
        cells = m[:, None] * DP + d[None, :]
        if active == 1:
            mask = live[:, None] & live_d[None, :]
            tl.store(here + m[:, None] * D + d[None, :], (acc / weight[:, None]).to(out.dtype.element_ty), mask=mask)
        else:
            SIZE: tl.constexpr = GP * (DP + 2)
            unit = row * HKV + head
            parts = partial + unit.to(tl.int64) * splits * SIZE
            tl.store(parts + split * SIZE + cells, acc, mask=live[:, None])
            tl.store(parts + split * SIZE + GP * DP + m, top, mask=live)
            tl.store(parts + split * SIZE + GP * (DP + 1) + m, weight, mask=live)
            tl.debug_barrier()
            if tl.atomic_add(arrivals + unit, 1, sem="acq_rel") == active - 1:
                tl.debug_barrier()
                merge_parts(parts, here, active, 0, splits, G, GP, D, DP, MOST)
                tl.store(arrivals + unit, 0)
