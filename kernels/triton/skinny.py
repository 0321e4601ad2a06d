"""A few rows (2 to 64) times a weight matrix on tensor cores: y[M,N] = x[M,K] · W[N,K]ᵀ, at memory speed.

The weights are the tall operand: a tile of BN of their rows meets all M rows of x, so that W is read once and the
tensor cores' 64 rows are not padding. SPLIT programs may share BN rows along K: each leaves its partial sums in
`partial`, and the last to arrive adds them in order, so the result does not depend on timing. With GATED, row n of the
gate meets row n of up, and what is written is silu(gate) * up.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tsd.kernels.triton.pdl import prefetch_l2, start_next, wait_previous


@triton.jit(do_not_specialize=["M"])
def skinny_kernel(
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
    PREFETCH: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    GATED: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """x [M,K], w [N,K] (GATED: [2N,K] = gate rows then up rows), y [M,N]; K divides by BK * SPLIT.

    PREFETCH, a multiple of 64, is how many columns are asked for before the wait on the previous kernel.
    partial float32 [SPLIT, programs, 1 + GATED, BN, BM]; arrivals int32 [programs], zero before and after.
    """
    start_next(PDL)
    block = tl.program_id(0)
    part = tl.program_id(1)
    blocks = tl.num_programs(0)
    SPAN: tl.constexpr = K // SPLIT
    m = tl.arange(0, BM)
    n = block * BN + tl.arange(0, BN)
    k = part * SPAN + tl.arange(0, BK)
    live_m = m < M
    live_n = n < N
    rows = w + tl.where(live_n, n, 0).to(tl.int64)[:, None] * K
    ups = rows + N.to(tl.int64) * K
    if PREFETCH > 0:
        lines = part * SPAN + tl.arange(0, PREFETCH // 64)[None, :] * 64
        prefetch_l2(rows + lines, PDL)
        if GATED:
            prefetch_l2(ups + lines, PDL)
    columns = x + tl.where(live_m, m, 0)[None, :] * K
    wait_previous(PDL)

    total = tl.zeros([BN, BM], tl.float32)
    total_up = tl.zeros([BN, BM], tl.float32)
    for step in tl.range(0, SPAN, BK, num_stages=STAGES):
        kk = step + k
        value = tl.load(columns + kk[:, None])
        tile = tl.load(rows + kk[None, :], eviction_policy="evict_first")
        total = tl.dot(tile, value, total, input_precision=PRECISION)
        if GATED:
            tile = tl.load(ups + kk[None, :], eviction_policy="evict_first")
            total_up = tl.dot(tile, value, total_up, input_precision=PRECISION)

    last = True
    if SPLIT > 1:
        LANES: tl.constexpr = 2 if GATED else 1
        cell = tl.arange(0, BN)[:, None] * BM + m[None, :]
        here = partial + (part * blocks + block) * (LANES * BM * BN)
        tl.store(here + cell, total)
        if GATED:
            tl.store(here + BM * BN + cell, total_up)
        tl.debug_barrier()
        last = tl.atomic_add(arrivals + block, 1, sem="acq_rel") == SPLIT - 1
        if last:
            total = tl.zeros([BN, BM], tl.float32)
            total_up = tl.zeros([BN, BM], tl.float32)
            for other in tl.static_range(SPLIT):
                there = partial + (other * blocks + block) * (LANES * BM * BN)
                total += tl.load(there + cell, cache_modifier=".cg")
                if GATED:
                    total_up += tl.load(there + BM * BN + cell, cache_modifier=".cg")
            tl.store(arrivals + block, 0)
    if last:
        if GATED:
            total = total / (1.0 + tl.exp(-total)) * total_up
        live = live_m[None, :] & live_n[:, None]
        spot = m[None, :] * N + n[:, None]
        if BIAS:
            total += tl.load(bias + n, mask=live_n, other=0.0).to(tl.float32)[:, None]
        if RESIDUAL:
            total += tl.load(residual + spot, mask=live, other=0.0).to(tl.float32)
        tl.store(y + spot, total.to(y.dtype.element_ty), mask=live)
