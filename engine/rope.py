"""The table of rotary angles that attention reads. Knows nothing about how it is applied (kernels do that)."""

from __future__ import annotations

import math

import torch

from tsd.engine.rope_config import RopeConfig


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """[head_dim / 2] float32 angular speeds, radians per position, with the model's scaling applied.

    Base frequencies: RoFormer (arXiv 2104.09864) section 3.2.2, theta^(-2i/d).
    """
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    freqs = 1.0 / (rope.theta**exponent)
    if rope.freq_factors:
        return freqs / torch.tensor(rope.freq_factors, dtype=torch.float32)
    if rope.kind == "linear":
        return freqs / rope.factor
    if rope.kind == "llama3":
        return _llama3(rope, freqs)
    if rope.kind == "yarn":
        return _yarn(rope, freqs, head_dim)
    return freqs


def amplitude(rope: RopeConfig) -> float:
    """What cos and sin are multiplied by. YaRN (arXiv 2309.00071) section 3.4: 0.1 ln(factor) + 1."""
    if rope.kind != "yarn":
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor

    def mscale(weight: float) -> float:
        return 0.1 * weight * math.log(rope.factor) + 1.0

    if rope.mscale and rope.mscale_all_dim:
        return mscale(rope.mscale) / mscale(rope.mscale_all_dim)
    return mscale(1.0)


def rope_table(rope: RopeConfig, head_dim: int, positions: int, device: torch.device | str) -> torch.Tensor:
    """[positions, head_dim] float32: cos of the head_dim / 2 angles of each position, then their sin."""
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), inverse_frequencies(rope, head_dim))
    table = torch.cat((angles.cos(), angles.sin()), dim=1)
    return (table * amplitude(rope)).to(device)


def _llama3(rope: RopeConfig, freqs: torch.Tensor) -> torch.Tensor:
    """Divides slow frequencies by `factor`, keeps fast ones, and blends linearly in turns per original context."""
    turns = rope.original_context * freqs / (2 * math.pi)
    keep = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    keep = keep.clamp(0.0, 1.0)
    return freqs * (keep + (1 - keep) / rope.factor)


def _yarn(rope: RopeConfig, freqs: torch.Tensor, head_dim: int) -> torch.Tensor:
    """YaRN section 3.2: dimensions that turn more than beta_fast times keep their frequency, fewer than beta_slow
    are divided by `factor`, and those between are blended linearly in the dimension's index."""

    def dimension(turns: float) -> float:
        return head_dim * math.log(rope.original_context / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = (high - low) or 0.001
    slow = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / width).clamp(0.0, 1.0)
    return freqs * (1 - slow) + freqs / rope.factor * slow
