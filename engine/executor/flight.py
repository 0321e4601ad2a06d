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

    __slots__ = ("finish", "plan", "rows", "sampled", "scored", "serial")

    def __init__(self, plan: ExecutionPlan, serial: int, rows: np.ndarray | None = None) -> None:
        self.plan = plan
        self.serial = serial
        """Of the block that the step takes, and of its answer."""
        self.rows = rows
        """Rows of the plan that draw a token, in the order of the answer; None is all of them."""
        self.sampled: tuple[Sampled, np.ndarray] | None = None
        """With log-probabilities: what was drawn, and how many alternatives each row wants."""
        self.scored: dict[int, list[TokenLogprobs]] = {}
        self.finish: Callable[[], None] | None = None
        """Queues the sampling, where it has to wait for the tokens of the step before."""

    @property
    def num_drawn(self) -> int:
        return self.plan.num_rows if self.rows is None else len(self.rows)


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
