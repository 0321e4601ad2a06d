"""Whether prompts get their turn: no step after step that only decodes while one waits that could start.

Sees plans and what anybody may ask of a scheduler; knows nothing of how the turns are chosen.
"""

from __future__ import annotations

from tsd.scheduler.core import Scheduler
from tsd.scheduler.simulation.violation import Violation
from tsd.scheduler.types import ExecutionPlan, SchedulerConfig

RETRIES = 8
"""Steps after which a prompt that did not fit is tried again."""


class Turns:
    """Of one scheduler. Says nothing of lives whose steps hold either prompts or rows that decode."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.slots = config.max_num_seqs if config.mixed_batch else 0
        self.most = config.prefill_hold + config.max_in_flight + RETRIES
        longest = -(-config.max_model_len // config.page_size)
        self.room = longest + 2 * config.room_to_grow * config.max_num_seqs + 1
        self.passed = 0

    def see(self, scheduler: Scheduler, plan: ExecutionPlan, copies: int) -> None:
        """`copies` between tiers are on their way: a prompt may wait for one. Raises Violation."""
        decodes_only = 0 < plan.num_decode == plan.num_rows
        startable = scheduler.num_waiting_requests and scheduler.num_running_requests < self.slots
        if not (decodes_only and startable) or copies:
            self.passed = 0
            return
        self.passed += 1
        if self.passed > self.most and self.has_room(scheduler):
            raise Violation(f"{self.passed} steps only decoded while a prompt waited and there was room for it")

    def has_room(self, scheduler: Scheduler) -> bool:
        """Whether any request would fit, with all that running ones may be left to grow."""
        pages = scheduler.snapshot()["tiers"]["device"]
        return int(pages["free"] + pages["cached"]) >= self.room
