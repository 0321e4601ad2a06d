"""One row times a weight matrix: y[1,N] = f(x)[K] · W[N,K]ᵀ, read at memory speed.

Each program owns BN rows of W. Its first BK columns are loaded before the wait on the previous kernel, so that the
weights stream in while that kernel drains; the other columns are prefetched into L2. The RMS norm costs no extra
pass: Σ w·(g·x) is scaled by 1/rms afterwards. `gated` computes silu(x·Gᵀ)·(x·Uᵀ) for W = [G; U].
"""

from __future__ import annotations

import triton
import triton.language as tl

from tsd.kernels.triton.pdl import prefetch_l2, start_next, wait_previous


@triton.jit
def _inputs(x, norm, k, live, K: tl.constexpr, NORM: tl.constexpr, ACT: tl.constexpr):
    """f(x) without the 1/rms factor, and the squares that go into it; both [BK] float32."""
    value = tl.load(x + k, mask=live, other=0.0).to(tl.float32)
    squares = value * value
    if ACT:
        up = tl.load(x + K + k, mask=live, other=0.0).to(tl.float32)
        value = value / (1.0 + tl.exp(-value)) * up
    if NORM:
        value = value * tl.load(norm + k, mask=live, other=0.0).to(tl.float32)
    return value, squares


@triton.jit
def gemv_kernel(
    x,
    w,
    bias,
    norm,
    residual,
    y,
    N,
    eps,
    K: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    NORM: tl.constexpr,
    ACT: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    GATED: tl.constexpr,
    PDL: tl.constexpr,
):
    """x [K] (ACT: [2K] = gate|up), w [N,K] (GATED: [2N,K] = gate rows then up rows), y [N]."""
    start_next(PDL)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    live_n = n < N
    rows = w + n.to(tl.int64)[:, None] * K
    live = live_n[:, None] & (k < K)[None, :]
    first = tl.load(rows + k[None, :], mask=live, other=0.0, eviction_policy="evict_first")
    ups = rows + N.to(tl.int64) * K
    if GATED:
        first_up = tl.load(ups + k[None, :], mask=live, other=0.0, eviction_policy="evict_first")
    for later in tl.static_range(BK, K, BK):
        lines = later + tl.arange(0, BK // 64) * 64
        live_lines = live_n[:, None] & (lines < K)[None, :]
        prefetch_l2(tl.where(live_lines, rows + lines[None, :], rows), PDL)
        if GATED:
            prefetch_l2(tl.where(live_lines, ups + lines[None, :], ups), PDL)
    wait_previous(PDL)

    value, squares = _inputs(x, norm, k, k < K, K, NORM, ACT)
    total = tl.sum(first.to(tl.float32) * value[None, :], 1)
    power = tl.sum(squares, 0)
    if GATED:
        total_up = tl.sum(first_up.to(tl.float32) * value[None, :], 1)
    for later in tl.static_range(BK, K, BK):
        kk = later + k
        live = live_n[:, None] & (kk < K)[None, :]
        tile = tl.load(rows + kk[None, :], mask=live, other=0.0, eviction_policy="evict_first")
        value, squares = _inputs(x, norm, kk, kk < K, K, NORM, ACT)
        total += tl.sum(tile.to(tl.float32) * value[None, :], 1)
        power += tl.sum(squares, 0)
        if GATED:
            tile = tl.load(ups + kk[None, :], mask=live, other=0.0, eviction_policy="evict_first")
            total_up += tl.sum(tile.to(tl.float32) * value[None, :], 1)
    if NORM:
        scale = tl.rsqrt(power / K + eps)
        total *= scale
        if GATED:
            total_up *= scale
    if GATED:
        total = total / (1.0 + tl.exp(-total)) * total_up
    if BIAS:
        total += tl.load(bias + n, mask=live_n, other=0.0).to(tl.float32)
    if RESIDUAL:
        total += tl.load(residual + n, mask=live_n, other=0.0).to(tl.float32)
    tl.store(y + n, total.to(y.dtype.element_ty), mask=live_n)
