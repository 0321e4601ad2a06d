"""Launching `slab.py` alone, or leaving its sums for `merge_norm.py`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton

from tsd.kernels.triton.merge_norm import merge_kernel
from tsd.kernels.triton.slab import slab_kernel
from tsd.kernels.triton.target import dependent
from tsd.kernels.triton.workspace import workspace


@dataclass(frozen=True)
class Slab:
    """Tiling of `slab_kernel`: bn rows of W (16 a warp), bk columns a tile, `stages` tiles in shared memory.

    `bm` rows of x to a program; 0 for all of them.
    """

    bn: int
    bk: int
    split: int
    stages: int
    bm: int = 0


def multiply(
    plan: Slab,
    x: torch.Tensor,
    w: torch.Tensor,
    y: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    gated: bool = False,
) -> None:
    """y [M, N] = x [M, K] · wᵀ (+ bias + residual), or gated with w [2N, K]; all contiguous."""
    _launch(plan, x, w, y, y.shape[1], bias, residual, gated=gated)


def multiply_add_norm(
    plan: Slab, x: torch.Tensor, w: torch.Tensor, residual: torch.Tensor, norm: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """hidden = residual + x · wᵀ and its RMS norm with `norm`, both [M, N]: the product in parts, then one program a
    row that adds them."""
    rows, n = residual.shape
    partial = _launch(plan, x, w, None, n, None, None)
    hidden, normed = torch.empty_like(residual), torch.empty_like(residual)
    columns = triton.next_power_of_2(n)
    pdl, dependency = dependent(x.device)
    merge_kernel[(rows,)](
        partial,
        residual,
        norm,
        hidden,
        normed,
        n,
        eps,
        BM=plan.bm or padded_rows(rows),
        BN=plan.bn,
        SPLIT=plan.split,
        COLUMNS=columns,
        PDL=pdl,
        num_warps=min(16, max(4, columns // 512)),
        **dependency,
    )
    return hidden, normed


def padded_rows(rows: int) -> int:
    """Columns of a `wgmma` that rows of x take up as the narrow operand."""
    return max(16, triton.next_power_of_2(rows))


def _launch(
    plan: Slab,
    x: torch.Tensor,
    w: torch.Tensor,
    y: torch.Tensor | None,
    n: int,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    *,
    gated: bool = False,
) -> torch.Tensor:
    """One launch; without `y` the sums stay in parts. Returns where the parts are."""
    rows = x.shape[0]
    block = plan.bm or padded_rows(rows)
    grid = (triton.cdiv(n, plan.bn // 2 if gated else plan.bn), plan.split, triton.cdiv(rows, block))
    scratch = workspace(x.device)
    parts = plan.split > 1 or y is None
    partial = scratch.floats(math.prod(grid) * block * plan.bn) if parts else x
    pdl, dependency = dependent(x.device)
    slab_kernel[grid](
        x,
        w,
        bias if bias is not None else x,
        residual if residual is not None else x,
        y if y is not None else x,
        partial,
        scratch.counters,
        rows,
        n,
        K=w.shape[1],
        BM=block,
        BN=plan.bn,
        BK=plan.bk,
        SPLIT=plan.split,
        STAGES=plan.stages,
        BIAS=bias is not None,
        RESIDUAL=residual is not None,
        GATED=gated,
        LEAVE=y is None,
        PDL=pdl,
        num_warps=plan.bn // 16,
        **dependency,
    )
    return partial
