"""What the step loop asks of a device.

An executor owns every tensor: weights, KV pages and the per-slot row state. `launch` queues one plan and returns at
once; steps run in the order launched. When one has landed the executor makes its file descriptor readable, and
`landed` hands out results in the same order. A fault of the device is raised from `landed`, once, and is final.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from tsd.engine.protocol import TokenLogprobs
from tsd.scheduler.types import ExecutionPlan, LayersLanded, MoveDone

MoveEvent = MoveDone | LayersLanded


class DeviceFault(RuntimeError):
    """The device or a kernel failed; the engine must end."""


@dataclass(slots=True)
class StepResult:
    """Row i of the plan sampled `tokens[i]`; unspecified where the plan did not sample."""

    step: int
    tokens: np.ndarray
    """int32 [B]."""
    failed: tuple[int, ...] = ()
    """Rows whose logits were not finite."""
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    """By row, for those that asked."""
    prompt_logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    """By request id: one entry for each prompt token predicted in this step, in order."""
    device_began: float = 0.0
    """On the engine's monotonic clock."""
    device_s: float = 0.0
    """Time the device worked on the step; 0 where it is not measured."""


class Executor(Protocol):
    """See the module's docstring. Methods are called from the loop's thread only."""

    landed_fd: int

    def launch(self, plan: ExecutionPlan) -> None:
        """Queues the plan's changes, moves and rows, in that order; a plan without rows lands in its turn too."""
        ...

    def landed(self) -> list[StepResult | MoveEvent]: ...

    def warm_up(self, compiled: bool = False) -> dict[str, Any]:
        """Runs every kernel variant once, so that no request meets a compiler; returns what was captured.

        `compiled` tells that the kernels should lie ready in the compiler's cache.
        """
        ...

    def describe_kernels(self) -> list[dict[str, Any]]: ...

    def statistics(self) -> dict[str, Any]: ...

    def close(self) -> None: ...
