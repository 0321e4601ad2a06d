"""RMS norm in plain torch, any dtype and device."""

from __future__ import annotations

import torch


def rms(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [..., K] over its root mean square, times weight [K]: float32 inside, cast, then scaled (as transformers)."""
    full = x.to(torch.float32)
    full = full * torch.rsqrt(full.pow(2).mean(-1, keepdim=True) + eps)
    return weight * full.to(x.dtype)
