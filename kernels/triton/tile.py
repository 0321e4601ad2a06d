"""Some hundred rows times a weight matrix on tensor cores, y[M,N] = x[M,K] · W[N,K]ᵀ.

At that size a product takes as long as the launches around it, which the vendor's library leaves to others: here the
gate or the residual is part of it, and the kernel starts as a dependent of the one before. SPLIT programs may share a
tile along K: each leaves its partial sums in `partial`, and the last to arrive adds them in order, so the result does
not depend on timing.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tsd.kernels.triton.pdl import prefetch_l2, start_next, wait_previous


@triton.jit(do_not_specialize=["M"])
def tile_kernel(
    x,
    w,
    bias,
    residual,
    y,
    partial,
    arrivals,
    M,
    N,
    K: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    SPLIT: tl.constexpr,
    STAGES: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    GATED: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """x [M,K], w [N,K] (GATED: [2N,K] = gate rows then up rows), y [M,N]; K divides by BK * SPLIT.

    Grid tiles * SPLIT, tiles of the same columns of W next to each other.
    partial float32 [SPLIT, tiles, 1 + GATED, BM, BN]; arrivals int32 [tiles], zero before and after.
    """
    start_next(PDL)
    tiles = tl.num_programs(0) // SPLIT
    tile = tl.program_id(0) // SPLIT
    part = tl.program_id(0) % SPLIT
    tiles_m = tl.cdiv(M, BM)
    SPAN: tl.constexpr = K // SPLIT
    m = tile % tiles_m * BM + tl.arange(0, BM)
    n = tile // tiles_m * BN + tl.arange(0, BN)
    k = part * SPAN + tl.arange(0, BK)
    live_m = m < M
    live_n = n < N
    x_rows = x + tl.where(live_m, m, 0).to(tl.int64)[:, None] * K
    w_place = tl.where(live_n, n, 0).to(tl.int64)
    w_rows = w + w_place[None, :] * K
    ups = w_rows + N.to(tl.int64) * K
    if PDL:
        lines = part * SPAN + tl.arange(0, BK // 64)[:, None] * 64
        prefetch_l2(w_rows + lines, PDL)
        if GATED:
            prefetch_l2(ups + lines, PDL)
    wait_previous(PDL)

    total = tl.zeros([BM, BN], tl.float32)
    total_up = tl.zeros([BM, BN], tl.float32)
    for step in tl.range(0, SPAN, BK, num_stages=STAGES):
        kk = step + k
        value = tl.load(x_rows + kk[None, :])
        columns = tl.load(w_rows + kk[:, None])
        total = tl.dot(value, columns, total, input_precision=PRECISION)
        if GATED:
            columns = tl.load(ups + kk[:, None])
            total_up = tl.dot(value, columns, total_up, input_precision=PRECISION)

    last = True
    if SPLIT > 1:
        LANES: tl.constexpr = 2 if GATED else 1
        cell = tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :]
        here = partial + (part * tiles + tile) * (LANES * BM * BN)
        tl.store(here + cell, total)
        if GATED:
            tl.store(here + BM * BN + cell, total_up)
        tl.debug_barrier()
        last = tl.atomic_add(arrivals + tile, 1, sem="acq_rel") == SPLIT - 1
        if last:
            total = tl.zeros([BM, BN], tl.float32)
            total_up = tl.zeros([BM, BN], tl.float32)
            for other in tl.static_range(SPLIT):
                there = partial + (other * tiles + tile) * (LANES * BM * BN)
                total += tl.load(there + cell, cache_modifier=".cg")
                if GATED:
                    total_up += tl.load(there + BM * BN + cell, cache_modifier=".cg")
            tl.store(arrivals + tile, 0)
    if last:
        if GATED:
            total = total / (1.0 + tl.exp(-total)) * total_up
        live = live_m[:, None] & live_n[None, :]
        spot = m.to(tl.int64)[:, None] * N + n[None, :]
        if BIAS:
            total += tl.load(bias + n, mask=live_n, other=0.0).to(tl.float32)[None, :]
        if RESIDUAL:
            total += tl.load(residual + spot, mask=live, other=0.0).to(tl.float32)
        tl.store(y + spot, total.to(y.dtype.element_ty), mask=live)
