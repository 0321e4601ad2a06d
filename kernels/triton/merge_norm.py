"""The sums along K that `slab.py` left, added to the residual and normed: a product's end and the next one's norm."""

from __future__ import annotations

import triton
import triton.language as tl

from tsd.kernels.triton.pdl import start_next, wait_previous


@triton.jit
def merge_kernel(
    partial,
    residual,
    gain,
    hidden,
    normed,
    N,
    eps,
    BM: tl.constexpr,
    BN: tl.constexpr,
    SPLIT: tl.constexpr,
    COLUMNS: tl.constexpr,
    PDL: tl.constexpr,
):
    """hidden = residual + Σ partial, normed = gain * RMS norm of it; one program a row of N columns.

    partial float32 [row blocks, SPLIT, N / BN, BM, BN]; residual, hidden and normed [M,N]; gain [N].
    """
    start_next(PDL)
    row = tl.program_id(0)
    n = tl.arange(0, COLUMNS)
    live = n < N
    weight = tl.load(gain + n, mask=live, other=0.0)
    spot = row.to(tl.int64) * N + n
    wait_previous(PDL)
    total = tl.load(residual + spot, mask=live, other=0.0).to(tl.float32)
    cell = (row // BM) * (SPLIT * BM * N) + (n // BN) * (BM * BN) + (row % BM) * BN + n % BN
    added = tl.zeros([COLUMNS], tl.float32)
    for part in tl.static_range(SPLIT):
        added += tl.load(partial + part * (N * BM) + cell, mask=live, other=0.0, cache_modifier=".cg")
    value = (total + added).to(hidden.dtype.element_ty)
    tl.store(hidden + spot, value, mask=live)
    full = value.to(tl.float32)
    full *= tl.rsqrt(tl.sum(full * full, 0) / N + eps)
    tl.store(normed + spot, (weight.to(tl.float32) * full.to(value.dtype).to(tl.float32)).to(value.dtype), mask=live)
