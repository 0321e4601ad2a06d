"""The step loop: keeps the device busy, turns what landed into events, and tells the fronts.

One turn launches every plan the scheduler hands out (it allows one step to run and one to wait behind it), so the
device starts the next step while this process works on the one that landed. Owns the order of these acts and
nothing else: policy is the scheduler's, tensors are the executor's, channels are the intake's.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from tsd.engine.executor.base import DeviceFault, Executor, StepResult
from tsd.engine.kv_events import KvEventFeed
from tsd.engine.pace import Pace
from tsd.engine.requests import LiveRequests
from tsd.engine.stats import StepTokens
from tsd.engine.trace import DEVICE, HOST, Trace
from tsd.scheduler.core import Scheduler
from tsd.scheduler.types import ExecutionPlan, StepLanded


class StepLoop:
    """Drives one scheduler and one executor on the running event loop. `on_fault` is called once, and is final."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        requests: LiveRequests,
        on_fault: Callable[[BaseException], None],
        clock: Callable[[], float] = time.monotonic,
        trace: Trace | None = None,
        events: KvEventFeed | None = None,
    ) -> None:
        self.events = events
        self.trace = trace
        self.scheduler = scheduler
        self.executor = executor
        self.requests = requests
        self.clock = clock
        self.pace = Pace()
        self.paused = False
        self.last_step = 0
        self.last_batch: tuple[int, int, int] = (0, 0, 0)
        """Prefill rows, decode rows and tokens of the newest plan."""
        self.step_tokens = StepTokens()
        self._on_fault = on_fault
        self._flights: deque[ExecutionPlan] = deque()
        self._turn_asked = False
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(executor.landed_fd, self._landed)

    @property
    def idle(self) -> bool:
        return not self._flights and not self.scheduler.has_work

    def kick(self) -> None:
        """Asks for a turn: something arrived, was aborted or resumed. Several asks make one turn."""
        if not self._turn_asked:
            self._turn_asked = True
            self._loop.call_soon(self._turn)

    def close(self) -> None:
        self._loop.remove_reader(self.executor.landed_fd)

    def tick(self) -> None:
        """Called about every second: deadlines pass and gauges fall even where nothing runs."""
        self.kick()

    def _turn(self) -> None:
        self._turn_asked = False
        try:
            self._launch()
            self.requests.publish_finished(self.scheduler.take_finished(), self.last_step)
            if self.events is not None:
                self.events.publish()
        except Exception as error:
            self._fail(error)

    def _launch(self) -> None:
        if self.paused:
            return
        now = self.clock()
        while (plan := self.scheduler.next_plan(now)) is not None:
            planned = self.clock() if self.trace is not None else 0.0
            self.executor.launch(plan)
            self._flights.append(plan)
            if plan.num_rows:
                if self.trace is not None:
                    self.trace.add(HOST, "plan", now, planned - now, step=plan.step)
                    self.trace.add(HOST, "launch", planned, self.clock() - planned, step=plan.step)
                self.last_batch = (plan.num_rows - plan.num_decode, plan.num_decode, plan.num_tokens)
                self.step_tokens.observe(plan.num_tokens)
                self.pace.launched(now)
            if plan.admitted:
                self.requests.admitted(plan.admitted, now)
            now = self.clock()

    def _landed(self) -> None:
        try:
            for result in self.executor.landed():
                if isinstance(result, StepResult):
                    self._step_landed(result)
                else:
                    self.scheduler.advance(result, self.clock())
            self._launch()
            self.requests.publish_finished(self.scheduler.take_finished(), self.last_step)
            if self.events is not None:
                self.events.publish()
        except Exception as error:
            self._fail(error)

    def _step_landed(self, result: StepResult) -> None:
        plan = self._flights.popleft()
        if plan.step != result.step:
            raise DeviceFault(f"step {result.step} landed where step {plan.step} was due")
        now = self.clock()
        self.last_step = plan.step
        if plan.num_rows:
            self.pace.landed(now, result.device_s, bool(self._flights))
        outcome = self.scheduler.advance(StepLanded(result.step, result.tokens, result.failed), now)
        if self.trace is not None and plan.num_rows:
            self.trace.add(HOST, "advance", now, self.clock() - now, step=plan.step)
            rows = {"decode": plan.num_decode, "prefill": plan.num_rows - plan.num_decode, "tokens": plan.num_tokens}
            self.trace.add(DEVICE, "step", result.device_began, result.device_s, step=plan.step, **rows)
        # The device must not wait for what follows: the next plan goes out before the results are told.
        self._launch()
        if outcome is not None and (len(outcome.tokens) or result.prompt_logprobs):
            began = self.clock() if self.trace is not None else 0.0
            self.requests.publish(outcome, result, self.scheduler.take_finished())
            if self.trace is not None:
                self.trace.add(HOST, "publish", began, self.clock() - began, step=plan.step)

    def _fail(self, error: BaseException) -> None:
        self._loop.remove_reader(self.executor.landed_fd)
        self.paused = True
        self._on_fault(error)
