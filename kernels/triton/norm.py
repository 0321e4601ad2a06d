"""RMS norm and SiLU·mul by row, for products too large to fuse them. A row's result does not depend on its batch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tsd.kernels.triton.pdl import start_next, wait_previous
from tsd.kernels.triton.target import dependent


@triton.jit
def rms_kernel(x, weight, y, K, eps, BK: tl.constexpr, PDL: tl.constexpr):
    start_next(PDL)
    row = tl.program_id(0).to(tl.int64) * K
    k = tl.arange(0, BK)
    live = k < K
    gain = tl.load(weight + k, mask=live, other=0.0)
    wait_previous(PDL)
    value = tl.load(x + row + k, mask=live, other=0.0)
    full = value.to(tl.float32)
    full *= tl.rsqrt(tl.sum(full * full, 0) / K + eps)
    tl.store(y + row + k, (gain.to(tl.float32) * full.to(value.dtype).to(tl.float32)).to(value.dtype), mask=live)


@triton.jit
def silu_mul_kernel(x, y, K, BK: tl.constexpr, PDL: tl.constexpr):
    start_next(PDL)
    row = tl.program_id(0).to(tl.int64) * K
    k = tl.program_id(1) * BK + tl.arange(0, BK)
    live = k < K
    wait_previous(PDL)
    gate = tl.load(x + 2 * row + k, mask=live, other=0.0).to(tl.float32)
    up = tl.load(x + 2 * row + K + k, mask=live, other=0.0)
    turned = (gate / (1.0 + tl.exp(-gate))).to(up.dtype).to(tl.float32)
    tl.store(y + row + k, (turned * up.to(tl.float32)).to(up.dtype), mask=live)


def rms(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """As `norm.reference.rms`; x is contiguous."""
    width = x.shape[-1]
    y = torch.empty_like(x)
    block = triton.next_power_of_2(width)
    pdl, launch = dependent(x.device)
    rms_kernel[(x.numel() // width,)](
        x, weight, y, width, eps, block, PDL=pdl, num_warps=min(8, max(1, block // 256)), **launch
    )
    return y


def silu_mul(x: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up of x [T, 2K] = gate | up -> [T, K]."""
    tokens, width = x.shape[0], x.shape[1] // 2
    y = torch.empty((tokens, width), dtype=x.dtype, device=x.device)
    pdl, launch = dependent(x.device)
    silu_mul_kernel[(tokens, triton.cdiv(width, 1024))](x, y, width, 1024, PDL=pdl, num_warps=4, **launch)
    return y
