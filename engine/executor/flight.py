"""A step on its way to a GPU and back."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from tsd.engine.protocol import TokenLogprobs
from tsd.kernels.sampling.types import Sampled
from tsd.scheduler.types import ExecutionPlan


class Flight:
    """A step on its way: where its tokens will be, and what of it only the host knows."""

    __slots__ = ("events", "finish", "plan", "ring", "rows", "sampled", "scored")

    def __init__(self, plan: ExecutionPlan, ring: int, rows: np.ndarray) -> None:
        self.plan = plan
        self.ring = ring
        self.rows = rows
        """Rows of the plan that drew a token, in the order of the ring."""
        self.sampled: tuple[Sampled, np.ndarray] | None = None
        """With log-probabilities: what was drawn, and how many alternatives each row wants."""
        self.scored: dict[int, list[TokenLogprobs]] = {}
        self.events: tuple[torch.cuda.Event, torch.cuda.Event] | None = None
        """Begin and end on the device, where steps are timed."""
        self.finish: Callable[[], None] | None = None
        """Queues the sampling, where it has to wait for the tokens of the step before."""


def to_host(sampled: Sampled) -> Sampled:
    """Queues copies into pinned memory; they are whole once the step has landed."""

    def copied(part: torch.Tensor | None) -> torch.Tensor | None:
        if part is None:
            return None
        there = torch.empty(part.shape, dtype=part.dtype, pin_memory=True)
        return there.copy_(part, non_blocking=True)

    tokens = copied(sampled.tokens)
    assert tokens is not None
    return Sampled(tokens, *(copied(part) for part in sampled[1:]))
