"""Decode: one launch attends from every row of one token to its keys, those that rows have in common read once a group.

`share_kernel` runs once a step: of each group of GROUP neighbouring rows it finds how many leading pages they have in
common, by comparing page tables (the prefix cache shares pages, so equal numbers mean the same memory). The first row
that begins as most do leads the group, and a row is a member if it has at least half as many pages in common with it as
the best has; all members share what the least of them does, and nothing unless that saves enough reading.

`shared_kernel` then has two kinds of programs. The first ones attend from all members' queries at once, folded into one
tile, to a chunk of the common keys. The others attend from one row to a chunk of its own keys, and norm, turn and write
the new one. Each leaves its part; the last program of a row's own adds the row's parts in order, for which it waits
until the common ones of its group are there. Those programs come first in the grid and wait for none, so it cannot wait
in vain. A row that shares nothing and is not cut is written at once.

With BESIDE the kernel before lets this one go only when its own predecessor has ended (LATE in `paged.py`). Decode then
runs beside prefill, which fills few multiprocessors when its chunk is small, and waits for it at its end.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tsd.kernels.triton.merge import merge_parts
from tsd.kernels.triton.paged import fold_blocks
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
    ready,
    PAGE: tl.constexpr,
    GROUP: tl.constexpr,
    BP: tl.constexpr,
    LEAST: tl.constexpr,
    CALLS: tl.constexpr,
    HEADS: tl.constexpr,
    PDL: tl.constexpr,
):
    """shares [rows]: keys a row has in common with its group, or 0; group_shares [groups]. Grid: groups.

    Also zeroes ready int32 [CALLS, groups, HEADS].
    """
    start_next(PDL)
    wait_previous(PDL)
    group = tl.program_id(0)
    calls = tl.arange(0, CALLS)[:, None] * tl.num_programs(0) + group
    tl.store(ready + calls * HEADS + tl.arange(0, HEADS)[None, :], tl.zeros([CALLS, HEADS], tl.int32))
    r = tl.arange(0, GROUP)
    row = group * GROUP + r
    inside = row < rows
    count = tl.load(query_start + row + 1, mask=inside, other=0) - tl.load(query_start + row, mask=inside, other=0)
    # Only pages that the step does not write: those before the one of the newest key.
    whole = (tl.load(kv_lens + row, mask=inside, other=1) - 1) // PAGE
    whole = tl.where(count == 1, whole, 0)
    # The leader begins as most do: a stranger in the first place must not keep the others apart.
    opening = tl.load(page_table + row.to(tl.int64) * table_stride, mask=whole > 0, other=-1)
    fellows = tl.sum(((opening[:, None] == opening[None, :]) & (whole > 0)[None, :]).to(tl.int32), 1)
    fellows = tl.where(whole > 0, fellows, 0)
    leader = tl.min(tl.where((fellows > 0) & (fellows == tl.max(fellows, 0)), row, 2147483647), 0)
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
def _cut(rest, quota, splits, BN: tl.constexpr):
    """How `rest` keys are cut that are a row's own: keys of a chunk, and how many chunks."""
    wanted = tl.minimum(tl.maximum((rest + quota // 2) // quota, 1), splits)
    chunk = tl.maximum((rest + wanted * BN - 1) // (wanted * BN), 1) * BN
    return chunk, (rest + chunk - 1) // chunk


@triton.jit
def _common_chunk(common, BN: tl.constexpr, SHARED: tl.constexpr):
    return tl.maximum(tl.cdiv(tl.cdiv(common, SHARED), BN), 2) * BN


@triton.jit(
    do_not_specialize=["table_stride", "rows", "splits", "target", "floor"],
    do_not_specialize_on_alignment=["query_start", "kv_lens", "kv_slots", "ready"],
)
def shared_kernel(
    q,
    k_cache,
    v_cache,
    out,
    partial,
    arrivals,
    shares,
    group_shares,
    ready,
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
    MOST: tl.constexpr,
    BESIDE: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """q [T, HKV*G, D], out [T, HKV*G*D], caches [pages, PAGE, HKV, D]; scale includes log2 e. Rows of one token only.

    ROPE: q is qkv [T, (HKV*G + 2*HKV) * D], cos_sin float32 [positions, R]. A row's own keys are cut into as many
    chunks as balance the whole batch's work over `target` programs, at most `splits`, none of less than `floor` keys.
    Grid (ceil(rows / GROUP) * SHARED + chunks) * HKV, chunks = rows + ceil(target / HKV), or rows * splits if less.
    GROUP * G <= BM, BB >= rows, MOST >= splits + SHARED.
    partial float32 [rows * HKV, splits + SHARED, GP * (DP + 2)]: chunks of a row's own keys, then of the common ones.
    arrivals int32 [rows * HKV], zero before and after; ready int32 [groups, HKV], zero before.
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
    if not BESIDE:
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
            position = (tl.load(kv_lens + row, mask=member, other=1) - 1).to(tl.int64)[:, None]
            leader = tl.min(tl.where(member, row, 2147483647), 0)
            table = page_table + leader.to(tl.int64) * table_stride
            heads = q + (start * HEADS + head * G + m % G)[:, None] * D
            if ROPE:
                queries = turned(heads, q_norm, cos_sin, position, d, live_d, D, R, eps, Q_NORM)
                queries = queries.to(q.dtype.element_ty)
            else:
                queries = tl.load(heads + d[None, :], mask=member[:, None] & live_d[None, :], other=0.0)
            seen = tl.where(member, end, 0)
            top, weight, acc = fold_blocks(
                queries, k_head, v_head, table, seen, top, weight, acc, begin, end, end, scale,
                HKV * D, D, DP, PAGE, BN, STAGES, True, PRECISION,
            )  # fmt: skip
            parts = partial + ((row * HKV + head).to(tl.int64) * (splits + SHARED) + splits + part) * SIZE
            g = m % G
            tl.store(parts[:, None] + (g * DP)[:, None] + d[None, :], acc, mask=member[:, None])
            tl.store(parts + GP * DP + g, top, mask=member)
            tl.store(parts + GP * (DP + 1) + g, weight, mask=member)
            tl.debug_barrier()
            tl.atomic_add(ready + group * HKV + head, 1, sem="acq_rel")
    else:
        # The rows' chunks stand in one line; behind its end there is nothing to do.
        place -= common_places
        b = tl.arange(0, BB)
        inside = b < rows
        counts = tl.load(query_start + b + 1, mask=inside, other=0) - tl.load(query_start + b, mask=inside, other=0)
        rests = tl.load(kv_lens + b, mask=inside, other=0) - tl.load(shares + b, mask=inside, other=0)
        rests = tl.where(counts == 1, rests, 0)
        quota = tl.maximum(tl.cdiv(tl.sum(rests, 0) * HKV, target), floor)
        _, cuts = _cut(rests, quota, splits, BN)
        ends = tl.cumsum(cuts, 0)
        row = tl.sum((ends <= place).to(tl.int32), 0)
        split = place - tl.max(tl.where(ends <= place, ends, 0), 0)
        if row < BB:
            start = tl.load(query_start + row).to(tl.int64)
            length = tl.load(kv_lens + row)
            own = tl.load(shares + row)
            chunk, active = _cut(length - own, quota, splits, BN)
            live = m < G
            table = page_table + row.to(tl.int64) * table_stride
            begin = own + split * chunk
            end = tl.minimum(begin + chunk, length)
            slot = tl.load(kv_slots + start).to(tl.int64)
            heads = q + (start * HEADS + head * G + m % G)[:, None] * D
            if ROPE:
                position = (length - 1).to(tl.int64)
                queries = turned(heads, q_norm, cos_sin, position, d, live_d, D, R, eps, Q_NORM)
                queries = queries.to(q.dtype.element_ty)
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
            seen = tl.where(live, length, 0)
            top, weight, acc = fold_blocks(
                queries, k_head, v_head, table, seen, top, weight, acc, begin, end, end, scale,
                HKV * D, D, DP, PAGE, BN, STAGES, True, PRECISION,
            )  # fmt: skip
            here = out + (start * HKV + head) * (G * D)
            if (active == 1) & (own == 0):
                safe = tl.where(weight > 0.0, weight, 1.0)
                cells = here + m[:, None] * D + d[None, :]
                tl.store(cells, (acc / safe[:, None]).to(out.dtype.element_ty), mask=live[:, None] & live_d[None, :])
            else:
                unit = row * HKV + head
                parts = partial + unit.to(tl.int64) * (splits + SHARED) * SIZE
                mine = parts + split * SIZE
                tl.store(mine + m[:, None] * DP + d[None, :], acc, mask=live[:, None])
                tl.store(mine + GP * DP + m, top, mask=live)
                tl.store(mine + GP * (DP + 1) + m, weight, mask=live)
                tl.debug_barrier()
                arrived = active - 1
                if active > 1:
                    arrived = tl.atomic_add(arrivals + unit, 1, sem="acq_rel")
                if arrived == active - 1:
                    group = row // GROUP
                    common = tl.where(own > 0, tl.load(group_shares + group), 0)
                    joint = tl.cdiv(common, _common_chunk(common, BN, SHARED))
                    if joint > 0:
                        there = tl.atomic_add(ready + group * HKV + head, 0, sem="acquire")
                        while there < joint:
                            there = tl.atomic_add(ready + group * HKV + head, 0, sem="acquire")
                    tl.debug_barrier()
                    merge_parts(parts, here, active, joint, splits, G, GP, D, DP, MOST)
                    if active > 1:
                        tl.store(arrivals + unit, 0)
    # One program is enough to keep this launch from ending first; the others need not hold their place.
    if BESIDE and program == tl.num_programs(0) - 1:
        wait_previous(PDL)
