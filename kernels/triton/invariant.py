"""Linear layers whose rows do not depend on their batch: one order of sums for all sizes, whatever the tile.

Every tile shape adds up K in steps of one tensor-core instruction from first to last, so that all give the same bits
(seen on an H200; `tests/gpu` compares sizes that get different ones). Slower than `linear.py` at a few rows, since a
tile of 64 is computed even for one, and than the vendor's product at many.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tsd.kernels.triton.norm import rms, silu_mul
from tsd.kernels.triton.pdl import prefetch_l2, start_next, wait_previous
from tsd.kernels.triton.target import dependent, dot_precision
from tsd.kernels.weight import Weight

Tile = tuple[int, int, int, int, int]
"""Rows, columns and depth of a tile, warps, stages."""
NARROW: Tile = (64, 32, 128, 4, 4)
SQUARE: Tile = (64, 64, 128, 4, 4)
TALL: Tile = (128, 128, 64, 8, 4)
BAND = 8
"""Tiles of rows that share the same columns of W while these are in L2."""


@triton.jit(do_not_specialize=["M"])
def matmul_kernel(
    x,
    w,
    bias,
    residual,
    y,
    M,
    N,
    K,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    BAND: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """y [M,N] = x [M,K] · w [N,K]ᵀ (+ bias [N]) (+ residual [M,N])."""
    start_next(PDL)
    tiles_m = tl.cdiv(M, BM)
    tiles_n = tl.cdiv(N, BN)
    tile = tl.program_id(0)
    band = tile // (BAND * tiles_n)
    height = tl.minimum(tiles_m - band * BAND, BAND)
    inside = tile % (BAND * tiles_n)
    m = (band * BAND + inside % height) * BM + tl.arange(0, BM)
    n = inside // height * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    live_m, live_n = m < M, n < N
    x_rows = x + m.to(tl.int64)[:, None] * K
    w_rows = w + n.to(tl.int64)[None, :] * K
    prefetch_l2(tl.where(live_n, w + n.to(tl.int64) * K, w), PDL)
    wait_previous(PDL)
    total = tl.zeros([BM, BN], tl.float32)
    for start in range(0, K, BK):
        live_k = start + k < K
        value = tl.load(x_rows + (start + k)[None, :], mask=live_m[:, None] & live_k[None, :], other=0.0)
        tile_w = tl.load(w_rows + (start + k)[:, None], mask=live_n[None, :] & live_k[:, None], other=0.0)
        total = tl.dot(value, tile_w, total, input_precision=PRECISION)
    live = live_m[:, None] & live_n[None, :]
    spot = m.to(tl.int64)[:, None] * N + n[None, :]
    if BIAS:
        total += tl.load(bias + n, mask=live_n, other=0.0).to(tl.float32)[None, :]
    if RESIDUAL:
        total += tl.load(residual + spot, mask=live, other=0.0).to(tl.float32)
    tl.store(y + spot, total.to(y.dtype.element_ty), mask=live)


def tile_for(rows: int, n: int, dtype: torch.dtype) -> Tile:
    """The largest tile that still leaves most of the multiprocessors busy; float32 has no tensor-core tiles."""
    if dtype == torch.float32:
        return NARROW
    if triton.cdiv(rows, TALL[0]) * triton.cdiv(n, TALL[1]) >= 96 and rows > SQUARE[0]:
        return TALL
    return SQUARE if triton.cdiv(rows, SQUARE[0]) * triton.cdiv(n, SQUARE[1]) >= 96 else NARROW


def matmul(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    tile: Tile | None = None,
) -> torch.Tensor:
    """x [M, K] times w [N, K] transposed, plus bias and residual, in x's dtype. The tile does not change the result."""
    rows, k = x.shape
    n = w.shape[0]
    y = torch.empty((rows, n), dtype=x.dtype, device=x.device)
    if rows == 0:
        return y
    bm, bn, bk, warps, stages = tile or tile_for(rows, n, x.dtype)
    pdl, launch = dependent(x.device)
    matmul_kernel[(triton.cdiv(rows, bm) * triton.cdiv(n, bn),)](
        x,
        w,
        bias if bias is not None else x,
        residual if residual is not None else x,
        y,
        rows,
        n,
        k,
        BM=bm,
        BN=bn,
        BK=bk,
        BAND=BAND,
        BIAS=bias is not None,
        RESIDUAL=residual is not None,
        PRECISION=dot_precision(x.dtype),
        PDL=pdl,
        num_warps=warps,
        num_stages=stages,
        **launch,
    )
    return y


def linear(
    x: torch.Tensor,
    weight: Weight,
    *,
    bias: torch.Tensor | None = None,
    norm: torch.Tensor | None = None,
    eps: float = 0.0,
    act: str | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """As `gemm.reference.linear`, dense weights only. Raises ValueError for an unknown `act`."""
    if act == "silu_mul":
        x = silu_mul(x)
    elif act is not None:
        raise ValueError(f"unknown activation {act!r}")
    if norm is not None:
        x = rms(x, norm, eps)
    return matmul(x, weight.tensors["w"], bias, residual)
