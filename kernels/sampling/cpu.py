"""Sampling on a CPU: edits and logprobs in torch, the draw itself in C."""

from __future__ import annotations

import torch

from tsd.kernels.cpu.native import draw
from tsd.kernels.sampling.reference import edit_logits, with_logprobs
from tsd.kernels.sampling.types import Sampled, SamplingState


def sample(logits: torch.Tensor, state: SamplingState) -> Sampled:
    """Draws one id for each row of logits [S, V]. The logits are not changed."""
    raw = logits.to(torch.float32)
    return with_logprobs(raw, draw(edit_logits(raw, state) if state.edits_logits else raw, state), state.logprobs)
