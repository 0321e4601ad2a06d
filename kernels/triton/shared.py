"""Decode of rows that begin alike, as sessions on one system prompt do: the keys they share are read once a group.

`share_kernel` runs once a step: of each group of GROUP neighbouring rows it finds how many leading pages they have in
common, by comparing page tables (the prefix cache shares pages, so equal numbers mean the same memory). A row is a
member if it has at least half as many in common with the group's first row as the best has; all members share what the
least of them does, and nothing unless that saves enough reading.

`shared_kernel` then has two kinds of programs. One kind attends from all members' queries at once, folded into one
tile, to a chunk of the common keys. The other attends from one row to a chunk of its own keys, and norms, turns and
writes the new one. Each leaves its part, and `merge_kernel` adds a row's parts in order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tsd.kernels.triton.paged import _blocks
from tsd.kernels.triton.pdl import start_next, wait_previous
from tsd.kernels.triton.rope import turned


@triton.jit(do_not_specialize=["table_stride", "rows"], do_not_specialize_on_alignment=["query_start", "kv_lens"])
def share_kernel(
    query_start,
    kv_lens,
    page_table,
    table_stride,
    rows,
    shares,
    group_shares,
    PAGE: tl.constexpr,
    GROUP: tl.constexpr,
    BP: tl.constexpr,
    LEAST: tl.constexpr,
    PDL: tl.constexpr,
):
    """shares [rows]: keys a row has in common with its group, or 0; group_shares [groups]. Grid: groups."""
    start_next(PDL)
    wait_previous(PDL)
    group = tl.program_id(0)
    r = tl.arange(0, GROUP)
    row = group * GROUP + r
    inside = row < rows
    count = tl.load(query_start + row + 1, mask=inside, other=0) - tl.load(query_start + row, mask=inside, other=0)
    # Only pages that the step does not write: those before the one of the newest key.
    whole = (tl.load(kv_lens + row, mask=inside, other=1) - 1) // PAGE
    whole = tl.where(count == 1, whole, 0)
    leader = tl.min(tl.where(whole > 0, row, 2147483647), 0)
    alike = whole
    other = tl.where(row == leader, 0, whole)
    reach = tl.max(other, 0)
    first = 0
    while first < reach:
        p = first + tl.arange(0, BP)
        mine = tl.load(
            page_table + row.to(tl.int64)[:, None] * table_stride + p[None, :],
            mask=p[None, :] < whole[:, None],
            other=-1,
        )
        theirs = tl.load(page_table + leader.to(tl.int64) * table_stride + p, mask=p < reach, other=-2)
        differs = tl.min(tl.where(mine == theirs[None, :], 2147483647, p[None, :]), 1)
        alike = tl.minimum(alike, differs)
        first += BP
        reach = tl.where(tl.max(tl.where(row == leader, 0, alike), 0) >= first, reach, 0)
    best = tl.max(tl.where(row == leader, 0, alike), 0)
    # Entries behind the leader's pages are leftovers of other requests.
    own = tl.sum(tl.where(row == leader, whole, 0), 0)
    best = tl.minimum(best, own)
    alike = tl.where(row == leader, best, tl.minimum(alike, own))
    member = (alike > 0) & (2 * alike >= best)
    common = tl.min(tl.where(member, alike, 2147483647), 0)
    members = tl.sum(member.to(tl.int32), 0)
    common = tl.where((best > 0) & ((members - 1) * common >= LEAST), common * PAGE, 0)
    tl.store(shares + row, tl.where(member, common, 0), mask=inside)
    tl.store(group_shares + group, common)


@triton.jit
def _cut(kv_lens, shares, row, rows, splits, target, floor, HKV: tl.constexpr, BN: tl.constexpr, BB: tl.constexpr):
    """How a row's own keys are cut: keys of a chunk, and how many chunks."""
    b = tl.arange(0, BB)
    lengths = tl.load(kv_lens + b, mask=b < rows, other=0) - tl.load(shares + b, mask=b < rows, other=0)
    quota = tl.maximum(tl.cdiv(tl.sum(lengths, 0) * HKV, target), floor)
    rest = tl.load(kv_lens + row) - tl.load(shares + row)
    wanted = tl.minimum(tl.maximum((rest + quota // 2) // quota, 1), splits)
    chunk = tl.maximum(tl.cdiv(tl.cdiv(rest, wanted), BN), 1) * BN
    return chunk, tl.cdiv(rest, chunk)


@triton.jit
def _common_chunk(common, BN: tl.constexpr, SHARED: tl.constexpr):
    return tl.maximum(tl.cdiv(tl.cdiv(common, SHARED), BN), 2) * BN


@triton.jit(
    do_not_specialize=["table_stride", "rows", "splits", "target", "floor"],
    do_not_specialize_on_alignment=["query_start", "kv_lens", "kv_slots"],
)
def shared_kernel(
    q,
    k_cache,
    v_cache,
    out,
    partial,
    shares,
    group_shares,
    query_start,
    kv_lens,
    kv_slots,
    page_table,
    table_stride,
    rows,
    splits,
    scale,
    target,
    floor,
    cos_sin,
    q_norm,
    k_norm,
    eps,
    HKV: tl.constexpr,
    G: tl.constexpr,
    GP: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    PAGE: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BB: tl.constexpr,
    GROUP: tl.constexpr,
    SHARED: tl.constexpr,
    STAGES: tl.constexpr,
    ROPE: tl.constexpr,
    R: tl.constexpr,
    Q_NORM: tl.constexpr,
    K_NORM: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """As `paged_kernel` with DECODE; grid (ceil(rows / GROUP) * SHARED + rows * splits) * HKV, GROUP * G <= BM.

    partial float32 [rows * HKV, splits + SHARED, GP * (DP + 2)]: chunks of a row's own keys, then of the common ones.
    """
    start_next(PDL)
    program = tl.program_id(0)
    head = program % HKV
    place = program // HKV
    common_places = tl.cdiv(rows, GROUP) * SHARED
    SIZE: tl.constexpr = GP * (DP + 2)
    HEADS: tl.constexpr = HKV * (G + 2) if ROPE else HKV * G
    m = tl.arange(0, BM)
    d = tl.arange(0, DP)
    live_d = d < D
    k_head = k_cache + head * D
    v_head = v_cache + head * D
    top = tl.full([BM], -float("inf"), tl.float32)
    weight = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, DP], tl.float32)
    wait_previous(PDL)
    if place < common_places:
        group = place // SHARED
        part = place % SHARED
        common = tl.load(group_shares + group)
        chunk = _common_chunk(common, BN, SHARED)
        begin = part * chunk
        end = tl.minimum(begin + chunk, common)
        if begin < common:
            row = group * GROUP + m // G
            inside = (m < GROUP * G) & (row < rows)
            member = inside & (tl.load(shares + row, mask=inside, other=0) > 0)
            start = tl.load(query_start + row, mask=member, other=0).to(tl.int64)
            heads = q + (start * HEADS + head * G + m % G)[:, None] * D
            if ROPE:
                position = (tl.load(kv_lens + row, mask=member, other=1) - 1).to(tl.int64)[:, None]
                queries = turned(heads, q_norm, cos_sin, position, d, live_d, D, R, eps, Q_NORM)
                queries = queries.to(q.dtype.element_ty)
            else:
                queries = tl.load(heads + d[None, :], mask=member[:, None] & live_d[None, :], other=0.0)
            leader = tl.min(tl.where(member, row, 2147483647), 0)
            table = page_table + leader.to(tl.int64) * table_stride
            seen = tl.where(member, end, 0)
            top, weight, acc = _blocks(
                queries, k_head, v_head, table, seen, top, weight, acc, begin, end, end, scale,
                HKV * D, D, DP, PAGE, BN, STAGES, True, PRECISION,
            )  # fmt: skip
            parts = partial + ((row * HKV + head).to(tl.int64) * (splits + SHARED) + splits + part) * SIZE
            g = m % G
            tl.store(parts[:, None] + (g * DP)[:, None] + d[None, :], acc, mask=member[:, None])
            tl.store(parts + GP * DP + g, top, mask=member)
            tl.store(parts + GP * (DP + 1) + g, weight, mask=member)
    else:
        place -= common_places
        split = place % splits
        row = place // splits
        start = tl.load(query_start + row).to(tl.int64)
        count = tl.load(query_start + row + 1).to(tl.int64) - start
        length = tl.load(kv_lens + row)
        own = tl.load(shares + row)
        chunk, active = _cut(kv_lens, shares, row, rows, splits, target, floor, HKV, BN, BB)
        if (count == 1) & (split < active):
            live = m < G
            heads = q + (start * HEADS + head * G + m % G)[:, None] * D
            if ROPE:
                position = (length - 1).to(tl.int64)
                queries = turned(heads, q_norm, cos_sin, position, d, live_d, D, R, eps, Q_NORM)
                queries = queries.to(q.dtype.element_ty)
                slot = tl.load(kv_slots + start).to(tl.int64)
                if (split == active - 1) & (slot >= 0):
                    one = tl.arange(0, 1)
                    fresh = q + (start * HEADS + HKV * G + head + one)[:, None] * D
                    spot = (slot * HKV + one)[:, None] * D + d[None, :]
                    key = turned(fresh, k_norm, cos_sin, position, d, live_d, D, R, eps, K_NORM)
                    value = tl.load(fresh + HKV * D + d[None, :], mask=live_d[None, :], other=0.0)
                    tl.store(k_head + spot, key.to(k_cache.dtype.element_ty), mask=live_d[None, :])
                    tl.store(v_head + spot, value.to(v_cache.dtype.element_ty), mask=live_d[None, :])
                tl.debug_barrier()
            else:
                queries = tl.load(heads + d[None, :], mask=live[:, None] & live_d[None, :], other=0.0)
            table = page_table + row.to(tl.int64) * table_stride
            begin = own + split * chunk
            end = tl.minimum(begin + chunk, length)
            seen = tl.where(live, length, 0)
            top, weight, acc = _blocks(
                queries, k_head, v_head, table, seen, top, weight, acc, begin, end, end, scale,
                HKV * D, D, DP, PAGE, BN, STAGES, True, PRECISION,
            )  # fmt: skip
            if (active == 1) & (own == 0):
                here = out + (start * HKV + head) * (G * D) + m[:, None] * D + d[None, :]
                safe = tl.where(weight > 0.0, weight, 1.0)
                tl.store(here, (acc / safe[:, None]).to(out.dtype.element_ty), mask=live[:, None] & live_d[None, :])
            else:
                parts = partial + ((row * HKV + head).to(tl.int64) * (splits + SHARED) + split) * SIZE
                tl.store(parts + m[:, None] * DP + d[None, :], acc, mask=live[:, None])
                tl.store(parts + GP * DP + m, top, mask=live)
                tl.store(parts + GP * (DP + 1) + m, weight, mask=live)


@triton.jit(
    do_not_specialize=["rows", "splits", "target", "floor"], do_not_specialize_on_alignment=["query_start", "kv_lens"]
)
def merge_kernel(
    out,
    partial,
    shares,
    group_shares,
    query_start,
    kv_lens,
    rows,
    splits,
    target,
    floor,
    HKV: tl.constexpr,
    G: tl.constexpr,
    GP: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    BN: tl.constexpr,
    BB: tl.constexpr,
    GROUP: tl.constexpr,
    SHARED: tl.constexpr,
    MOST: tl.constexpr,
    PDL: tl.constexpr,
):
    """Adds the parts that `shared_kernel` left for each row and head. Grid rows * HKV; MOST >= splits + SHARED."""
    start_next(PDL)
    unit = tl.program_id(0)
    row = unit // HKV
    wait_previous(PDL)
    start = tl.load(query_start + row).to(tl.int64)
    count = tl.load(query_start + row + 1).to(tl.int64) - start
    own = tl.load(shares + row)
    _, active = _cut(kv_lens, shares, row, rows, splits, target, floor, HKV, BN, BB)
    if (count == 1) & ((active > 1) | (own > 0)):
        SIZE: tl.constexpr = GP * (DP + 2)
        common = tl.where(own > 0, tl.load(group_shares + row // GROUP), 0)
        joint = tl.cdiv(common, _common_chunk(common, BN, SHARED))
        parts = partial + unit.to(tl.int64) * (splits + SHARED) * SIZE
        s = tl.arange(0, MOST)
        g = tl.arange(0, GP)
        d = tl.arange(0, DP)
        live = g < G
        used = (s < active) | ((s >= splits) & (s < splits + joint))
        spots = parts + s[:, None] * SIZE + GP * DP + g[None, :]
        tops = tl.load(spots, mask=used[:, None] & live[None, :], other=-float("inf"))
        top = tl.where(live, tl.max(tops, 0), 0.0)
        acc = tl.zeros([GP, DP], tl.float32)
        weight = tl.zeros([GP], tl.float32)
        for part in tl.range(0, active + joint, loop_unroll_factor=4):
            there = parts + tl.where(part < active, part, splits + part - active) * SIZE
            share = tl.exp2(tl.load(there + GP * DP + g, mask=live, other=-float("inf")) - top)
            weight += share * tl.load(there + GP * (DP + 1) + g, mask=live, other=0.0)
            acc += share[:, None] * tl.load(there + g[:, None] * DP + d[None, :], mask=live[:, None], other=0.0)
        acc = acc / tl.where(weight > 0.0, weight, 1.0)[:, None]
        here = out + (start * HKV + unit % HKV) * (G * D) + g[:, None] * D + d[None, :]
        tl.store(here, acc.to(out.dtype.element_ty), mask=live[:, None] & (d < D)[None, :])
