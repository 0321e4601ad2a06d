"""The CUDA backend: plans become graph replays and eager prefill steps on one stream; the host never waits.

State that lasts (last tokens, page tables, KV pages) lives on the device by slot. A step's graph reads one block of
pinned memory and writes its tokens into another; a side stream waits for it and writes the eventfd. Each step takes
exactly one block, whatever way it goes, and its answer is checked when it has landed (`kernels/step/exchange.py`).
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from tsd.engine.batch import KVCache
from tsd.engine.executor.base import DeviceFault, MoveEvent, StepResult
from tsd.engine.executor.decode import DecodeSteps
from tsd.engine.executor.flight import Flight, to_host
from tsd.engine.executor.greedy import GreedySteps
from tsd.engine.executor.mixed import MixedSteps
from tsd.engine.executor.planned import plans_for
from tsd.engine.executor.rows import Rows
from tsd.engine.executor.sampling import logprobs_of, prompt_logprobs_of
from tsd.engine.executor.staging import Staging
from tsd.engine.executor.wake import Landing
from tsd.engine.executor.warmup import touch, warm_up_plans
from tsd.engine.kernel_report import describe
from tsd.engine.models import Decoder
from tsd.engine.tiers import BlockStore, HostPages, Mover
from tsd.kernels.compiling import CompilationCounter, CompilationWatch, compile_only
from tsd.kernels.registry import Selection
from tsd.kernels.sampling.types import Sampled
from tsd.scheduler.types import ExecutionPlan

log = logging.getLogger("tsd.engine")


class CudaExecutor:
    """See `Executor`. Everything runs on one stream of its own."""

    def __init__(
        self,
        model: Decoder,
        cache: KVCache,
        sample: Selection,
        *,
        max_num_seqs: int,
        max_model_len: int,
        max_step_tokens: int,
        vocab_size: int,
        device: torch.device,
        use_graphs: bool,
        timed: bool,
        report: Any,
        host_pages: int = 0,
        disk: BlockStore | None = None,
    ) -> None:
        self.model = model
        self.cache = cache
        self.device = device
        self.vocab_size = vocab_size
        self.rows = Rows(max_num_seqs, max_model_len, cache.page_size, vocab_size)
        self.padding = max_num_seqs
        self.landed_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.stream = torch.cuda.Stream(device)
        self._compilations = CompilationCounter()
        self._sample = sample
        self._report = report
        self._flights: deque[Flight] = deque()
        self._moved: deque[MoveEvent] = deque()
        self._mover = Mover(cache, HostPages(cache, host_pages), disk, self._tell_move) if host_pages else None
        self._attached = False
        self._owed = 0
        self._timed = timed
        self._clock_offset = 0.0
        """Seconds to add to the device's clock for the host's."""
        most = max_num_seqs + max_num_seqs % 2
        pages = self.rows.page_table.shape[1]
        with torch.cuda.stream(self.stream):
            self.last_token = torch.zeros(max_num_seqs + 1, dtype=torch.int32, device=device)
            self.page_table = torch.zeros((max_num_seqs + 1, pages), dtype=torch.int32, device=device)
            self._side = torch.cuda.Stream(device)
            self._landing = Landing(self.stream.cuda_stream, self._side.cuda_stream, self.landed_fd)
            self._staging = Staging(most, pages, device)
            self._greedy = GreedySteps(
                self._staging.blocks, self._landing, self.rows.sampling.likeliest, self.rows.page_table
            )
            self.decode = DecodeSteps(
                model,
                cache,
                sample,
                self.rows,
                self.last_token,
                self.page_table,
                self._staging,
                self._landing,
                self.stream,
                use_graphs=use_graphs,
            )
            self.mixed = MixedSteps(
                model,
                cache,
                self.last_token,
                self.page_table,
                max_tokens=max_step_tokens,
                max_rows=max_num_seqs,
                device=device,
                plans=plans_for(model, cache.page_size, max_step_tokens, max_num_seqs, device),
            )

    # -- the loop's side -------------------------------------------------------------------------------------------

    def launch(self, plan: ExecutionPlan) -> None:
        """The step that runs most often takes four driver calls and no more; all others go the long way."""
        if not self._attached:
            # For this thread from now on: a replay goes to the current stream, and driver calls need a context.
            torch.cuda.set_device(self.device)
            torch.cuda.set_stream(self.stream)
            self._attached = True
        if (serial := self._greedy.launch(plan)) >= 0:
            self._flights.append(Flight(plan, serial))
            return
        self.rows.apply(plan)
        with torch.cuda.stream(self.stream), torch.inference_mode():
            for page in plan.zero_pages.tolist():
                for tensor in (*self.cache.k, *self.cache.v):
                    tensor[page].zero_()
            if plan.moves:
                assert self._mover is not None
                self._mover.submit(plan.moves)
            if plan.num_rows and plan.num_decode == plan.num_rows:
                flight = self._launch_decode(plan)
            else:
                flight = self._launch_mixed(plan)
            alone = not self._flights
            self._flights.append(flight)
            if flight.finish is None or alone:
                self._complete(flight)

    def _complete(self, flight: Flight) -> None:
        """Queues what is left of a step, and the wake-up at its end. Runs on the executor's stream."""
        if flight.finish is not None:
            flight.finish()
            flight.finish = None
        self._landing.signal()

    def landed(self) -> list[StepResult | MoveEvent]:
        try:
            count = os.eventfd_read(self.landed_fd)
        except BlockingIOError:
            return []
        results: list[StepResult | MoveEvent] = []
        count += self._owed
        while self._moved:
            results.append(self._moved.popleft())
            count -= 1
        # A move may be seen before its own wake-up is: what is owed comes with a later one.
        self._owed = min(0, count)
        try:
            for _ in range(count):
                flight = self._flights.popleft()
                if flight.plan.waits and self._mover is not None:
                    # The scheduler hears of the copy's end before it hears of the step's.
                    self._mover.finish(flight.plan.waits)
                    while self._moved:
                        results.append(self._moved.popleft())
                        self._owed -= 1
                results.append(self._result(flight))
                if self._flights and self._flights[0].finish is not None:
                    # Its rows could not be masked or penalised before these tokens were known.
                    with torch.cuda.stream(self.stream), torch.inference_mode():
                        self._complete(self._flights[0])
            return results
        except RuntimeError as error:
            raise DeviceFault(f"a step failed: {error}") from error

    def _tell_move(self, result: MoveEvent) -> None:
        self._moved.append(result)
        os.eventfd_write(self.landed_fd, 1)

    def _result(self, flight: Flight) -> StepResult:
        plan, blocks, serial = flight.plan, self._staging.blocks, flight.serial
        # The sampler answers -1 for a row whose logits were not finite.
        bad = blocks.read(serial, flight.num_drawn)
        tokens = drawn = blocks.tokens(serial, flight.num_drawn)
        rows = flight.rows
        if rows is not None:
            tokens = np.zeros(plan.num_rows, np.int32)
            tokens[rows] = drawn
        result = StepResult(plan.step, tokens)
        if bad:
            places = np.flatnonzero(drawn < 0)
            result.failed = tuple((places if rows is None else rows[places]).tolist())
        sampling = self.rows.sampling
        if sampling.edits or sampling.grammars:
            sampling.sampled(plan.slots if rows is None else plan.slots[rows], np.maximum(drawn, 0))
        if flight.sampled is not None:
            sampled, wanted = flight.sampled
            found = logprobs_of(sampled, wanted)
            result.logprobs = {i if rows is None else int(rows[i]): entry for i, entry in found.items()}
        result.prompt_logprobs = flight.scored
        began, ended = blocks.times(serial)
        if ended:
            result.device_began = began * 1e-9 + self._clock_offset
            result.device_s = (ended - began) * 1e-9
        return result

    def _set_clock(self) -> None:
        """Ties the device's clock to the host's: of some steps without rows, the one that came back soonest."""
        nearest = float("inf")
        for _ in range(8):
            asked = time.monotonic()
            serial = self.decode.send_nothing()
            self.stream.synchronize()
            back = time.monotonic()
            self._staging.blocks.read(serial, 0)
            began, _ = self._staging.blocks.times(serial)
            if began and back - asked < nearest:
                nearest = back - asked
                self._clock_offset = (asked + back) / 2 - began * 1e-9

    # -- decode: one graph a step ----------------------------------------------------------------------------------

    def _launch_decode(self, plan: ExecutionPlan) -> Flight:
        rows, slots = plan.num_rows, plan.slots
        sampling = self.rows.sampling
        bucket = self.decode.bucket(rows) or rows
        self._greedy.padded_rows = bucket - rows
        if sampling.is_greedy(slots):
            flight = Flight(plan, self.decode.send(plan, rows=True))
            self.decode.run_greedy(bucket)
            return flight
        serial, state = self.decode.send_sampled(plan)
        flight = Flight(plan, serial)
        plain = sampling.is_plain(slots)
        token_index = plan.starts + 1 - self.rows.num_prompt[slots]
        logits = self.decode.run_forward(bucket)
        there = self._staging.fields["slots"][:rows]

        def draw() -> None:
            chosen = state if plain else sampling.state(slots, token_index, self.device)
            self._keep(flight, self._sample(logits[:rows], chosen), there, slots)

        if sampling.needs_last_token(slots):
            flight.finish = draw
        else:
            draw()
        return flight

    # -- steps with prefill rows -----------------------------------------------------------------------------------

    def _launch_mixed(self, plan: ExecutionPlan) -> Flight:
        serial = self.decode.send(plan, rows=False)
        self.decode.run_changes()
        if not plan.num_rows:
            return Flight(plan, serial)
        waits = self._mover.waits(plan.waits) if plan.waits and self._mover is not None else None
        logits = self.mixed.run(self.rows.lay_out(plan), plan.num_decode, waits)
        chosen = np.flatnonzero(plan.samples[: plan.num_rows])
        flight = Flight(plan, serial, chosen)
        self._greedy.padded_rows = 0
        if len(chosen):
            slots = plan.slots[chosen]
            token_index = plan.starts[chosen] + plan.counts[chosen] - self.rows.num_prompt[slots]
            there = torch.from_numpy(slots).pin_memory().to(self.device, non_blocking=True)

            def draw() -> None:
                state = self.rows.sampling.state(slots, token_index, self.device)
                self._keep(flight, self._sample(logits[: len(chosen)], state), there, slots)

            if self.rows.sampling.is_greedy(slots):
                self.decode.draw_greedy(logits[: len(chosen)], there)
            elif self.rows.sampling.needs_last_token(slots):
                flight.finish = draw
            else:
                draw()
        elif self._timed:
            self.decode.tell_end()
        offset = len(chosen)
        for row, start, count in self.rows.prompt_rows(plan):
            scored = self.rows.scored[int(plan.slots[row])]
            targets = scored.prompt[start + 1 : start + 1 + count]
            entries = prompt_logprobs_of(logits[offset : offset + len(targets)], targets, scored.alternatives)
            flight.scored[scored.request_id] = entries
            offset += count
        return flight

    def _keep(self, flight: Flight, sampled: Sampled, slots_there: torch.Tensor, slots: np.ndarray) -> None:
        """Feeds the drawn tokens to the next step and starts them on their way to the host."""
        self.decode.feed(sampled.tokens, slots_there)
        wanted = self.rows.sampling.logprobs[slots]
        if (wanted >= 0).any():
            flight.sampled = (to_host(sampled), wanted)

    # -- the rest --------------------------------------------------------------------------------------------------

    def warm_up(self, compiled: bool = False) -> dict[str, Any]:
        """Compiles and runs every kernel variant, then captures the graphs; no request meets a compiler."""
        with torch.cuda.stream(self.stream), torch.inference_mode():
            began = time.monotonic()
            watch = CompilationWatch()
            with watch, self._shallow():
                if not compiled:
                    with compile_only():
                        self._touch_everything()
                self._touch_everything()
                torch.cuda.synchronize()
            if compiled and watch.compiled:
                names = ", ".join(sorted(set(watch.compiled)))
                log.warning("%d kernels were not compiled ahead: %s", len(watch.compiled), names)
            ready = time.monotonic()
            self._report("kernels", f"{watch.loaded} kernels loaded in {ready - began:.1f} s", 0.5)
            if self.decode.buckets:
                self._capture()
            self._run_warm_up_plans()
            self._set_clock()
            self._report("graphs", f"captured in {time.monotonic() - ready:.1f} s", 1.0)
        self._compilations.start()
        return self.statistics()["graphs"]

    @contextmanager
    def _shallow(self) -> Iterator[None]:
        """Within, steps run the first two layers only, which launch every kernel that all of them do."""
        shallow = self.model.first_layers(2)
        self.decode.model = self.mixed.model = shallow
        try:
            yield
        finally:
            self.decode.model = self.mixed.model = self.model

    def _touch_everything(self) -> None:
        """Calls each step at each size."""
        touch(self.decode, self.mixed, self._sample, max_rows=self.padding, vocab_size=self.vocab_size)

    def _run_warm_up_plans(self) -> None:
        """The ways of the loop, with a prompt and its first tokens."""
        for plan in warm_up_plans(self.cache.page_size):
            self.rows.apply(plan)
            launch = self._launch_decode if plan.num_decode else self._launch_mixed
            flight = launch(plan)
            torch.cuda.synchronize()
            self._staging.blocks.read(flight.serial, flight.num_drawn)

    def _capture(self) -> None:
        torch.cuda.empty_cache()
        self.decode.capture(lambda done: self._report("graphs", "", done / 2))
        self._greedy.serve(
            {rows: step.handle for rows, step in self.decode.greedy_graphs.captured.items() if step.handle}
        )
        pool = self.decode.greedy_graphs.pool
        self.mixed.capture(pool, self.stream, lambda done: self._report("graphs", "", 0.5 + done / 2))
        torch.cuda.synchronize()

    def describe_kernels(self) -> list[dict[str, Any]]:
        return describe(self.model.describe_kernels(), self._sample)

    def statistics(self) -> dict[str, Any]:
        return {
            "padding": self._greedy.padded_rows,
            "graphs": {
                "buckets": self.decode.buckets,
                "captured": self.decode.captured + self.mixed.captured,
                "compilations_after_ready": self._compilations.count,
                "compiled_after_ready": self._compilations.names,
            },
        }

    def close(self) -> None:
        if self._mover is not None:
            self._mover.close()
        torch.cuda.synchronize(self.device)
        os.close(self.landed_fd)
