"""Launching `tile.py`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from tsd.kernels.triton.target import dependent, dot_precision
from tsd.kernels.triton.tile import tile_kernel
from tsd.kernels.triton.workspace import workspace


@dataclass(frozen=True)
class Tile:
    """Tiling of `tile_kernel`: rows and columns of y, columns of x, programs along K."""

    bm: int
    bn: int
    bk: int
    split: int
    warps: int
    stages: int


def multiply_tiles(
    plan: Tile,
    x: torch.Tensor,
    w: torch.Tensor,
    y: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    gated: bool = False,
) -> None:
    """y [M, N] = x [M, K] · wᵀ (+ bias + residual), or gated with w [2N, K]; all contiguous."""
    rows, n = y.shape
    tiles = triton.cdiv(rows, plan.bm) * triton.cdiv(n, plan.bn)
    pdl, dependency = dependent(x.device)
    scratch = workspace(x.device)
    partial = scratch.floats(plan.split * tiles * 2 * plan.bm * plan.bn) if plan.split > 1 else x
    tile_kernel[(tiles * plan.split,)](
        x,
        w,
        bias if bias is not None else x,
        residual if residual is not None else x,
        y,
        partial,
        scratch.counters,
        rows,
        n,
        K=w.shape[1],
        BM=plan.bm,
        BN=plan.bn,
        BK=plan.bk,
        SPLIT=plan.split,
        STAGES=plan.stages,
        BIAS=bias is not None,
        RESIDUAL=residual is not None,
        GATED=gated,
        PRECISION=dot_precision(x.dtype),
        PDL=pdl,
        num_warps=plan.warps,
        num_stages=plan.stages,
        **dependency,
    )
