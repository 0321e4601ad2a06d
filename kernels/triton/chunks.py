"""Attention of short prefill chunks over long contexts: their keys are dealt out evenly to a fixed number of programs.

A chunk of a few hundred tokens has too few tiles to fill a GPU, each with thousands of keys. Here all blocks of keys of
all tiles and KV heads stand in one line, which is cut into equal pieces, one a program: a program may end one tile and
begin the next, and a tile may lie in several programs.

    tiles      |----- A -----|----- B -----|----- C -----|
    programs   |--- 0 ---|--- 1 ---|--- 2 ---|--- 3 ---|

What a program finds for a tile that is not wholly its own it leaves in `partial`; the last of a tile's programs to
arrive adds them in the order of the keys, so the result does not depend on timing. It does depend on what else is in
the batch, so the batch-invariant mode does without. Lengths are read on the device; the grid depends on none.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tsd.kernels.triton.paged import fold_blocks
from tsd.kernels.triton.pdl import start_next, wait_previous


@triton.jit(
    do_not_specialize=["table_stride", "rows", "beside", "least"],
    do_not_specialize_on_alignment=["query_start", "kv_lens"],
)
def chunks_kernel(
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
    scale,
    beside,
    least,
    HKV: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    PAGE: tl.constexpr,
    TB: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BB: tl.constexpr,
    STAGES: tl.constexpr,
    SINGLES: tl.constexpr,
    LATE: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """q [T, HKV*G, D], out [T, HKV*G*D], caches [pages, PAGE, HKV, D]; scale includes log2 e.

    Rows of more than one token (SINGLES: of any), at most BB. With LATE, and rows of one token in the batch, only the
    first `beside` programs work, so that decode finds room beside them. No program gets less than `least` blocks.
    partial float32 [2 * programs, BM * (DP + 2)]; arrivals int32 [programs], zero before and after.
    """
    if not LATE:
        start_next(PDL)
    program = tl.program_id(0)
    SIZE: tl.constexpr = BM * (DP + 2)
    r = tl.arange(0, BB)
    counts = tl.load(query_start + r + 1, mask=r < rows, other=0) - tl.load(query_start + r, mask=r < rows, other=0)
    lengths = tl.load(kv_lens + r, mask=r < rows, other=0)
    wanted = counts > (0 if SINGLES else 1)
    tiles = tl.where(wanted, (counts + TB - 1) // TB, 0)
    # Blocks of keys of each of a row's tiles: as many as the last one has.
    blocks = (lengths + BN - 1) // BN
    ends = tl.cumsum(tiles * blocks, 0) * HKV
    total = tl.max(ends, 0)
    programs = tl.num_programs(0)
    if LATE:
        programs = tl.where(tl.max((counts == 1).to(tl.int32), 0) > 0, tl.minimum(beside, programs), programs)
    quota = tl.maximum(tl.cdiv(total, programs), least)
    at = program * quota
    stop = tl.minimum(at + quota, total)
    m = tl.arange(0, BM)
    d = tl.arange(0, DP)
    wait_previous(PDL)
    if LATE:
        start_next(PDL)
    while at < stop:
        row = tl.sum((ends <= at).to(tl.int32), 0)
        row_tiles = tl.sum(tl.where(r == row, tiles, 0), 0)
        row_blocks = tl.sum(tl.where(r == row, blocks, 0), 0)
        into = at - (tl.sum(tl.where(r == row, ends, 0), 0) - HKV * row_tiles * row_blocks)
        unit = into // row_blocks
        head = unit // row_tiles
        tile = unit % row_tiles
        block = into % row_blocks
        much = tl.minimum(row_blocks - block, stop - at)
        # The programs that have a part of this tile.
        opened = at - block
        first = opened // quota
        last = (opened + row_blocks - 1) // quota

        start = tl.load(query_start + row)
        count = tl.load(query_start + row + 1) - start
        length = tl.load(kv_lens + row)
        token = tile * TB + m // G
        live = (m < TB * G) & (token < count)
        spot = ((start + token) * (HKV * G) + head * G + m % G).to(tl.int64)[:, None] * D + d[None, :]
        live_spot = live[:, None] & (d < D)[None, :]
        queries = tl.load(q + spot, mask=live_spot, other=0.0)
        seen = tl.where(live, length - count + token + 1, 0)
        oldest = length - count + tile * TB
        finish = tl.minimum(length, oldest + TB)
        begin = block * BN
        end = tl.minimum(begin + much * BN, finish)
        whole = tl.maximum(tl.minimum((oldest + 1) // BN * BN, end), begin)
        table = page_table + row.to(tl.int64) * table_stride
        k_head = k_cache + head * D
        v_head = v_cache + head * D
        top = tl.full([BM], -float("inf"), tl.float32)
        weight = tl.zeros([BM], tl.float32)
        acc = tl.zeros([BM, DP], tl.float32)
        top, weight, acc = fold_blocks(
            queries, k_head, v_head, table, seen, top, weight, acc, begin, whole, whole, scale,
            HKV * D, D, DP, PAGE, BN, STAGES, False, PRECISION,
        )  # fmt: skip
        top, weight, acc = fold_blocks(
            queries, k_head, v_head, table, seen, top, weight, acc, whole, end, end, scale,
            HKV * D, D, DP, PAGE, BN, STAGES, True, PRECISION,
        )  # fmt: skip
        mine = True
        if first < last:
            # A program has at most two tiles in part: one that an earlier program began, one that a later one ends.
            here = partial + (2 * program + (block == 0).to(tl.int32)).to(tl.int64) * SIZE
            tl.store(here + m[:, None] * DP + d[None, :], acc)
            tl.store(here + BM * DP + m, top)
            tl.store(here + BM * (DP + 1) + m, weight)
            tl.debug_barrier()
            mine = tl.atomic_add(arrivals + first, 1, sem="acq_rel") == last - first
            if mine:
                top = tl.full([BM], -float("inf"), tl.float32)
                weight = tl.zeros([BM], tl.float32)
                acc = tl.zeros([BM, DP], tl.float32)
                for other in tl.range(first, last + 1, loop_unroll_factor=2):
                    there = partial + (2 * other + (other == first).to(tl.int32)).to(tl.int64) * SIZE
                    their_top = tl.load(there + BM * DP + m, cache_modifier=".cg")
                    their_weight = tl.load(there + BM * (DP + 1) + m, cache_modifier=".cg")
                    higher = tl.maximum(top, their_top)
                    shift = tl.where(higher == -float("inf"), 0.0, higher)
                    fade = tl.exp2(top - shift)
                    share = tl.exp2(their_top - shift)
                    weight = weight * fade + their_weight * share
                    theirs = tl.load(there + m[:, None] * DP + d[None, :], cache_modifier=".cg")
                    acc = acc * fade[:, None] + theirs * share[:, None]
                    top = higher
                tl.store(arrivals + first, 0)
        if mine:
            safe = tl.where(weight > 0.0, weight, 1.0)
            tl.store(out + spot, (acc / safe[:, None]).to(out.dtype.element_ty), mask=live_spot)
        at += much
