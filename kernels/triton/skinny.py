"""A few rows (2 to 64) times a weight matrix on tensor cores: y[M,N] = f(x)[M,K] · W[N,K]ᵀ, at memory speed.

Every program reads BN rows of W once for all M rows of x. SPLIT programs may share BN rows along K: each leaves its
partial sums in `partial`, and the last to arrive adds them in order, so the result does not depend on timing.
As in `gemv.py` the RMS norm is a factor applied at the end, and `gated` pairs row n of the gate with row n of up.
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
    norm,
    residual,
    y,
    partial,
    arrivals,
    M,
    N,
    eps,
    K: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    SPLIT: tl.constexpr,
    STAGES: tl.constexpr,
    PREFETCH: tl.constexpr,
    NORM: tl.constexpr,
    ACT: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    GATED: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """x [M,K] (ACT: [M,2K]), w [N,K] (GATED: [2N,K]), y [M,N]; K divides by BK * SPLIT.

    partial float32 [SPLIT, programs, 1 + GATED, BM, BN] and its squares [SPLIT, programs, BM] behind it;
    arrivals int32 [programs], zero before and after.
    """
    start_next(PDL)
    block = tl.program_id(0)
    part = tl.program_id(1)
    blocks = tl.num_programs(0)
    SPAN: tl.constexpr = K // SPLIT
    XK: tl.constexpr = 2 * K if ACT else K
    m = tl.arange(0, BM)
    n = block * BN + tl.arange(0, BN)
    k = part * SPAN + tl.arange(0, BK)
    live_m = m < M
    live_n = n < N
    rows = w + n.to(tl.int64) * K
    ups = rows + N.to(tl.int64) * K
    for line in tl.static_range(0, min(PREFETCH, SPAN), 64):
        prefetch_l2(tl.where(live_n, rows, w) + part * SPAN + line, PDL)
        if GATED:
            prefetch_l2(tl.where(live_n, ups, w) + part * SPAN + line, PDL)
    wait_previous(PDL)

    total = tl.zeros([BM, BN], tl.float32)
    total_up = tl.zeros([BM, BN], tl.float32)
    power = tl.zeros([BM], tl.float32)
    for step in tl.range(0, SPAN, BK, num_stages=STAGES):
        kk = step + k
        value = tl.load(x + m[:, None] * XK + kk[None, :], mask=live_m[:, None], other=0.0)
        if ACT:
            up = tl.load(x + m[:, None] * XK + K + kk[None, :], mask=live_m[:, None], other=0.0).to(tl.float32)
            gate = value.to(tl.float32)
            value = (gate / (1.0 + tl.exp(-gate)) * up).to(x.dtype.element_ty)
        if NORM:
            wide = value.to(tl.float32)
            power += tl.sum(wide * wide, 1)
            value = (wide * tl.load(norm + kk).to(tl.float32)[None, :]).to(x.dtype.element_ty)
        tile = tl.load(rows[None, :] + kk[:, None], mask=live_n[None, :], other=0.0, eviction_policy="evict_first")
        total = tl.dot(value, tile, total, input_precision=PRECISION)
        if GATED:
            tile = tl.load(ups[None, :] + kk[:, None], mask=live_n[None, :], other=0.0, eviction_policy="evict_first")
            total_up = tl.dot(value, tile, total_up, input_precision=PRECISION)

    last = True
    if SPLIT > 1:
        LANES: tl.constexpr = 2 if GATED else 1
        cell = m[:, None] * BN + tl.arange(0, BN)[None, :]
        powers = partial + SPLIT * LANES * BM * BN * blocks
        here = part * blocks + block
        tl.store(partial + here * (LANES * BM * BN) + cell, total)
        if GATED:
            tl.store(partial + here * (LANES * BM * BN) + BM * BN + cell, total_up)
        if NORM:
            tl.store(powers + here * BM + m, power)
        tl.debug_barrier()
        last = tl.atomic_add(arrivals + block, 1, sem="acq_rel") == SPLIT - 1
        if last:
            total = tl.zeros([BM, BN], tl.float32)
            total_up = tl.zeros([BM, BN], tl.float32)
            power = tl.zeros([BM], tl.float32)
            for other in tl.static_range(SPLIT):
                there = other * blocks + block
                total += tl.load(partial + there * (LANES * BM * BN) + cell, cache_modifier=".cg")
                if GATED:
                    total_up += tl.load(partial + there * (LANES * BM * BN) + BM * BN + cell, cache_modifier=".cg")
                if NORM:
                    power += tl.load(powers + there * BM + m, cache_modifier=".cg")
            tl.store(arrivals + block, 0)
    if last:
        if NORM:
            scale = tl.rsqrt(power / K + eps)
            total *= scale[:, None]
            total_up *= scale[:, None]
        if GATED:
            total = total / (1.0 + tl.exp(-total)) * total_up
        live = live_m[:, None] & live_n[None, :]
        spot = m[:, None] * N + n[None, :]
        if BIAS:
            total += tl.load(bias + n, mask=live_n, other=0.0).to(tl.float32)[None, :]
        if RESIDUAL:
            total += tl.load(residual + spot, mask=live, other=0.0).to(tl.float32)
        tl.store(y + spot, total.to(y.dtype.element_ty), mask=live)
