"""Linear layers in plain torch, any dtype and device: each step by itself, nothing fused."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tsd.kernels.norm.reference import rms
from tsd.kernels.weight import Weight


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
    """y [T, N] = f(x) @ w.T + bias + residual, in x's dtype.

    f is RMS norm with `norm` [K] and eps when given, and with act="silu_mul" (x is [T, 2K] = gate | up)
    silu(gate) * up. residual is [T, N]; a kernel may give its memory to the result.
    Raises ValueError for an unknown `act`.
    """
    if act == "silu_mul":
        gate, up = x.chunk(2, dim=-1)
        x = F.silu(gate) * up
    elif act is not None:
        raise ValueError(f"unknown activation {act!r}")
    if norm is not None:
        x = rms(x, norm, eps)
    y = F.linear(x, weight.dequantize(x.dtype), bias)
    return y if residual is None else residual + y


def gated(x: torch.Tensor, weight: Weight, *, norm: torch.Tensor | None = None, eps: float = 0.0) -> torch.Tensor:
    """silu(f(x) @ G.T) * (f(x) @ U.T) [T, N] in x's dtype, for a weight [2N, K] = G over U; f as in `linear`."""
    gate, up = linear(x, weight, norm=norm, eps=eps).chunk(2, dim=-1)
    return F.silu(gate) * up


def add_norm(
    x: torch.Tensor,
    weight: Weight,
    *,
    residual: torch.Tensor,
    norm: torch.Tensor,
    eps: float,
    bias: torch.Tensor | None = None,
    act: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(hidden, normed), both [T, N]: hidden is `linear` with the residual, normed its RMS norm with `norm` [N] and eps.

    normed is what the next layer starts with; a kernel answers None where that layer had better norm for itself.
    """
    hidden = linear(x, weight, bias=bias, act=act, residual=residual)
    return hidden, rms(hidden, norm, eps)
