"""What the host sends to the device for a step, and what comes back: the exchange of one executor, both sides.

Owns the memory of the exchange (`kernels/step/exchange.py` says how it is used) and the calls that write and read it.
Knows layouts, nothing of what the words mean.
"""

from __future__ import annotations

import torch

from tsd.engine.executor.blocks import StepBlocks
from tsd.kernels.step.exchange import make_exchange
from tsd.scheduler.types import ExecutionPlan


def pinned(size: int | tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Zeroed int32 words of host memory from which a copy to `device` does not wait."""
    return torch.zeros(size, dtype=torch.int32, pin_memory=device.type == "cuda")


class Staging:
    """`rows` is the most rows of a step (even), `width` the pages of a slot's row in the page table."""

    def __init__(self, rows: int, width: int, device: torch.device) -> None:
        self.exchange = make_exchange(rows, device)
        self.blocks = StepBlocks(self.exchange.blocks.numpy(), self.exchange.answers.numpy(), rows, width)
        self.fields = self.exchange.views()
        """Of the block that the device took last, on the device, by name: [M] each."""

    def send(self, plan: ExecutionPlan, rows: bool) -> int:
        """Gives the plan's page-table changes, and its decode rows if asked, to the step launched next; its number.

        Changes must be no more than UPDATES.
        """
        if rows:
            self.blocks.stage(plan.slots, plan.starts)
        if len(plan.table_slots):
            self.blocks.stage_pages(plan.table_slots, plan.table_index, plan.table_pages)
        return self.blocks.send()

    def taken(self) -> int:
        """The serial number of the block that the device took last. Waits for the device."""
        return int(self.exchange.clock[0].item()) & 0xFFFFFFFF
