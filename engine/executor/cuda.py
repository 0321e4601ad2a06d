"""The CUDA backend: plans become graph replays and eager prefill steps on one stream; the host never waits.

State that lasts (last tokens, page tables, KV pages) lives on the device by slot. A step sends one pinned block,
replays a graph, and brings the sampled tokens back on a side stream whose last act writes the eventfd.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tsd.engine.batch import ForwardBatch, KVCache
from tsd.engine.executor.base import DeviceFault, StepResult
from tsd.engine.executor.graphs import StepGraphs, buckets_for
from tsd.engine.executor.mixed import MixedSteps
from tsd.engine.executor.rows import Rows
from tsd.engine.executor.sampling import logprobs_of, prompt_logprobs_of
from tsd.engine.executor.staging import UPDATES, Staging, TokenRing
from tsd.engine.executor.wake import Landing
from tsd.engine.executor.warmup import warm_up_plans
from tsd.engine.kernel_report import describe
from tsd.engine.models import Decoder
from tsd.engine.tiers import BlockStore, HostPages, Mover, MoveResult
from tsd.kernels.compiling import CompilationCounter, compile_only
from tsd.kernels.registry import Selection, select
from tsd.kernels.sampling.types import Sampled, SamplingState, greedy_state
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
        self.scored: dict[int, Any] = {}
        self.events: tuple[torch.cuda.Event, torch.cuda.Event] | None = None
        """Begin and end on the device, where steps are timed."""
        self.finish: Callable[[], None] | None = None
        """Queues the sampling, where it has to wait for the tokens of the step before."""


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
        self._prepare = select("step.prepare", dtype="int32", device=device)
        self._feed = select("step.feed", dtype="int32", device=device)
        self._report = report
        self._flights: deque[Flight] = deque()
        self._moved: deque[MoveResult] = deque()
        self._mover = Mover(cache, HostPages(cache, host_pages), disk, self._tell_move) if host_pages else None
        self._padded_rows = 0
        self._attached = False
        self._all_rows = np.arange(max_num_seqs)
        self._timed = timed
        self._origin: tuple[torch.cuda.Event, float] | None = None
        most = max_num_seqs + max_num_seqs % 2
        pages = self.rows.page_table.shape[1]
        with torch.cuda.stream(self.stream):
            self.last_token = torch.zeros(max_num_seqs + 1, dtype=torch.int32, device=device)
            self.page_table = torch.zeros((max_num_seqs + 1, pages), dtype=torch.int32, device=device)
            self._side = torch.cuda.Stream(device)
            landing = Landing(self.stream.cuda_stream, self._side.cuda_stream, self.landed_fd)
            self.staging = Staging(most, max_num_seqs * pages, device, landing)
            self.tokens = TokenRing(most, device, landing)
            self._inputs = torch.zeros((4, most), dtype=torch.int32, device=device)
            self._row_table = torch.zeros((most, pages), dtype=torch.int32, device=device)
            self._row_index = torch.arange(most + 1, dtype=torch.int32, device=device)
            self.mixed = MixedSteps(
                model,
                cache,
                self.last_token,
                self.page_table,
                max_tokens=max_step_tokens,
                max_rows=max_num_seqs,
                device=device,
            )
        self.greedy_graphs = StepGraphs(buckets_for(max_num_seqs) if use_graphs else [], self.stream)
        self.forward_graphs = StepGraphs(buckets_for(max_num_seqs) if use_graphs else [], self.stream)

    # -- the loop's side -------------------------------------------------------------------------------------------

    def launch(self, plan: ExecutionPlan) -> None:
        if not self._attached:
            # For this thread from now on: a replay goes to the current stream, and driver calls need a context.
            torch.cuda.set_device(self.device)
            torch.cuda.set_stream(self.stream)
            self._attached = True
        self.rows.apply(plan)
        if self._launch_greedy(plan):
            return
        with torch.cuda.stream(self.stream), torch.inference_mode():
            began = self._event()
            for page in plan.zero_pages.tolist():
                for tensor in (*self.cache.k, *self.cache.v):
                    tensor[page].zero_()
            if plan.moves:
                assert self._mover is not None
                self._mover.submit(plan.moves)
            if not plan.num_rows:
                self._send_updates(plan)
                flight = Flight(plan, self.tokens.next(), np.zeros(0, np.int64))
            elif plan.num_decode == plan.num_rows:
                flight = self._launch_decode(plan)
            else:
                flight = self._launch_mixed(plan)
            if began is not None:
                flight.events = (began, began)
            alone = not self._flights
            self._flights.append(flight)
            if flight.finish is None or alone:
                self._complete(flight)

    def _complete(self, flight: Flight) -> None:
        """Queues what is left of a step, and the way back of its tokens. Runs on the executor's stream."""
        if flight.finish is not None:
            flight.finish()
            flight.finish = None
        ended = self._event()
        if flight.events is not None and ended is not None:
            flight.events = (flight.events[0], ended)
        self.tokens.bring_back(flight.ring, len(flight.rows))

    def landed(self) -> list[StepResult | MoveResult]:
        try:
            count = os.eventfd_read(self.landed_fd)
        except BlockingIOError:
            return []
        results: list[StepResult | MoveResult] = []
        while self._moved:
            results.append(self._moved.popleft())
            count -= 1
        try:
            for _ in range(count):
                results.append(self._result(self._flights.popleft()))
                if self._flights and self._flights[0].finish is not None:
                    # Its rows could not be masked or penalised before these tokens were known.
                    with torch.cuda.stream(self.stream), torch.inference_mode():
                        self._complete(self._flights[0])
            return results
        except RuntimeError as error:
            raise DeviceFault(f"a step failed: {error}") from error

    def _tell_move(self, result: MoveResult) -> None:
        self._moved.append(result)
        os.eventfd_write(self.landed_fd, 1)

    def _result(self, flight: Flight) -> StepResult:
        plan = flight.plan
        result = StepResult(plan.step, np.zeros(plan.num_rows, np.int32))
        drawn = self.tokens.views[flight.ring, : len(flight.rows)]
        # The sampler answers -1 for a row whose logits were not finite.
        bad = drawn < 0
        if bad.any():
            result.failed = tuple(int(row) for row in flight.rows[bad])
        result.tokens[flight.rows] = np.maximum(drawn, 0)
        self.rows.sampling.sampled(plan.slots[flight.rows], result.tokens[flight.rows])
        if flight.sampled is not None:
            sampled, wanted = flight.sampled
            found = logprobs_of(sampled, wanted)
            result.logprobs = {int(flight.rows[i]): entry for i, entry in found.items()}
        result.prompt_logprobs = flight.scored
        if flight.events is not None and self._origin is not None:
            event, moment = self._origin
            began, ended = flight.events
            ended.synchronize()
            result.device_began = moment + event.elapsed_time(began) / 1e3
            result.device_s = began.elapsed_time(ended) / 1e3
        return result

    def _event(self) -> torch.cuda.Event | None:
        """A moment on the stream, where steps are timed."""
        if self._origin is None:
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record(self.stream)
        return event

    def _set_origin(self) -> None:
        """Ties the device's clock to the host's."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(self.stream)
        event.synchronize()
        self._origin = (event, time.monotonic())

    def _launch_greedy(self, plan: ExecutionPlan) -> bool:
        """The step that runs most often, with no more than its six driver calls; False where it does not apply."""
        rows = plan.num_rows
        if not rows or plan.num_decode != rows or plan.moves or len(plan.zero_pages) or self._origin is not None:
            return False
        slots = plan.slots[:rows]
        sampling = self.rows.sampling
        bucket = self.greedy_graphs.bucket(rows)
        if bucket is None or sampling.temperature[slots].any() or not sampling.is_plain(slots):
            return False
        if len(plan.table_slots) > UPDATES:
            return False
        self._stage_rows(plan, bucket)
        self.staging.send(greedy=True)
        self.greedy_graphs.replay(bucket)
        flight = Flight(plan, self.tokens.next(), self._all_rows[:rows])
        self._flights.append(flight)
        self.tokens.bring_back(flight.ring, rows)
        return True

    # -- decode: one graph a step ----------------------------------------------------------------------------------

    def _launch_decode(self, plan: ExecutionPlan) -> Flight:
        rows = plan.num_rows
        slots, starts = plan.slots[:rows], plan.starts[:rows]
        sampling = self.rows.sampling
        plain = sampling.is_plain(slots)
        greedy = plain and not sampling.temperature[slots].any()
        bucket = self.greedy_graphs.bucket(rows) or rows
        view = self._stage_rows(plan, bucket)
        flight = Flight(plan, self.tokens.next(), self._all_rows[:rows])
        if greedy:
            self.staging.send(greedy=True)
            if bucket in self.greedy_graphs.captured:
                self.greedy_graphs.replay(bucket)
            else:
                self._greedy_step(bucket)
            return flight
        token_index = starts + 1 - self.rows.num_prompt[slots]
        state = self._stage_sampling(view, slots, token_index, bucket)
        self.staging.send(greedy=False)
        captured = bucket in self.forward_graphs.captured
        logits = self.forward_graphs.replay(bucket) if captured else self._forward_step(bucket)
        there = self.staging.device.fields["slots"][:rows]

        def draw() -> None:
            chosen = state if plain else sampling.state(slots, token_index, self.device)
            self._keep(flight, self._sample(logits[:rows], chosen), there, slots)

        if sampling.needs_last_token(slots):
            flight.finish = draw
        else:
            draw()
        return flight

    def _stage_rows(self, plan: ExecutionPlan, bucket: int) -> dict[str, np.ndarray]:
        """The block of a decode step: page-table changes, slots and positions, padded to the bucket."""
        rows = plan.num_rows
        view = self._stage_updates(plan)
        view["slots"][:rows] = plan.slots[:rows]
        view["starts"][:rows] = plan.starts[:rows]
        if rows < bucket:
            view["slots"][rows:bucket] = self.padding
            view["starts"][rows:bucket] = 0
        self._padded_rows = bucket - rows
        return view

    def _stage_updates(self, plan: ExecutionPlan) -> dict[str, np.ndarray]:
        """The block for this step, page-table changes filled in; those beyond a block's room are sent ahead."""
        view = self.staging.next()
        count = len(plan.table_slots)
        if count > UPDATES:
            self._send_updates(plan)
        elif count:
            cells = plan.table_slots * self.page_table.shape[1] + plan.table_index
            self.staging.update(view, cells, plan.table_pages)
        return view

    def _stage_sampling(
        self, view: dict[str, np.ndarray], slots: np.ndarray, token_index: np.ndarray, bucket: int
    ) -> SamplingState:
        sampling, rows = self.rows.sampling, len(slots)
        view["temperature"][:rows] = sampling.temperature[slots]
        view["top_k"][:rows] = sampling.top_k[slots]
        view["top_p"][:rows] = sampling.top_p[slots]
        view["min_p"][:rows] = sampling.min_p[slots]
        view["seeds"][:rows] = sampling.seeds[slots]
        view["token_index"][:rows] = token_index
        fields = {name: field[:rows] for name, field in self.staging.device.fields.items()}
        return SamplingState(
            temperature=fields["temperature"],
            top_k=fields["top_k"],
            top_p=fields["top_p"],
            min_p=fields["min_p"],
            seeds=fields["seeds"],
            token_index=fields["token_index"],
            filtered=sampling.is_filtered(slots),
        )

    def _forward_step(self, rows: int) -> torch.Tensor:
        """Logits [rows, V] of the decode rows that the device's block names."""
        block = self.staging.device
        tokens, positions, kv_slots, kv_lens = (self._inputs[i, :rows] for i in range(4))
        table = self._row_table[:rows]
        self._prepare(
            block.cells,
            block.pages,
            block.fields["slots"][:rows],
            block.fields["starts"][:rows],
            self.last_token,
            self.page_table,
            tokens,
            positions,
            kv_slots,
            kv_lens,
            table,
            self.cache.page_size,
        )
        batch = ForwardBatch(
            tokens=tokens,
            positions=positions,
            kv_slots=kv_slots,
            query_start=self._row_index[: rows + 1],
            kv_lens=kv_lens,
            page_table=table,
            sample_index=self._row_index[:rows],
            num_decode=rows,
            num_rows=rows,
            max_query_len=1,
            max_kv_len=self.page_table.shape[1] * self.cache.page_size,
            page_size=self.cache.page_size,
        )
        return self.model.forward(batch, self.cache)

    def _greedy_step(self, rows: int) -> torch.Tensor:
        """A whole greedy step; tokens [rows], already fed to the next step."""
        logits = self._forward_step(rows)
        sampled = self._sample(logits, greedy_state(rows, self.device))
        out = self.tokens.device[:rows]
        self._feed(sampled.tokens, self.staging.device.fields["slots"][:rows], self.last_token, out)
        return out

    # -- steps with prefill rows -----------------------------------------------------------------------------------

    def _launch_mixed(self, plan: ExecutionPlan) -> Flight:
        self._send_updates(plan)
        logits = self.mixed.run(self.rows.lay_out(plan), plan.num_decode)
        chosen = np.flatnonzero(plan.samples[: plan.num_rows])
        flight = Flight(plan, self.tokens.next(), chosen)
        self._padded_rows = 0
        if len(chosen):
            slots = plan.slots[chosen]
            token_index = plan.starts[chosen] + plan.counts[chosen] - self.rows.num_prompt[slots]
            there = torch.from_numpy(slots).pin_memory().to(self.device, non_blocking=True)

            def draw() -> None:
                state = self.rows.sampling.state(slots, token_index, self.device)
                self._keep(flight, self._sample(logits[: len(chosen)], state), there, slots)

            if self.rows.sampling.needs_last_token(slots):
                flight.finish = draw
            else:
                draw()
        offset = len(chosen)
        for row, start, count in self.rows.prompt_rows(plan):
            scored = self.rows.scored[int(plan.slots[row])]
            targets = scored.prompt[start + 1 : start + 1 + count]
            entries = prompt_logprobs_of(logits[offset : offset + len(targets)], targets, scored.alternatives)
            flight.scored[scored.request_id] = entries
            offset += count
        return flight

    def _send_updates(self, plan: ExecutionPlan) -> None:
        """Page-table changes of a step that has no graph of its own to carry them."""
        if len(plan.table_slots):
            cells = plan.table_slots.astype(np.int64) * self.page_table.shape[1] + plan.table_index
            block = torch.from_numpy(np.stack((cells, plan.table_pages.astype(np.int64)))).pin_memory()
            there = block.to(self.device, non_blocking=True)
            self.page_table.view(-1)[there[0]] = there[1].to(torch.int32)

    def _keep(self, flight: Flight, sampled: Sampled, slots_there: torch.Tensor, slots: np.ndarray) -> None:
        """Feeds the drawn tokens to the next step and starts them on their way to the host."""
        self._feed(sampled.tokens, slots_there, self.last_token, self.tokens.device)
        wanted = self.rows.sampling.logprobs[slots]
        if (wanted >= 0).any():
            flight.sampled = (_to_host(sampled), wanted)

    # -- the rest --------------------------------------------------------------------------------------------------

    def warm_up(self) -> dict[str, Any]:
        """Compiles and runs every kernel variant, then captures the graphs; no request meets a compiler."""
        with torch.cuda.stream(self.stream), torch.inference_mode():
            began = time.monotonic()
            with compile_only():
                self._touch_everything()
            torch.cuda.synchronize()
            compiled = time.monotonic()
            self._report("kernels", f"compiled in {compiled - began:.1f} s", 0.5)
            self._run_warm_up_plans()
            if self.greedy_graphs.buckets:
                self._capture()
                self._report("graphs", f"captured in {time.monotonic() - compiled:.1f} s", 1.0)
        if self._timed:
            self._set_origin()
        self._compilations.start()
        return self.statistics()["graphs"]

    def _run_warm_up_plans(self) -> None:
        for plan in warm_up_plans(self.cache.page_size):
            self.rows.apply(plan)
            launch = self._launch_decode if plan.num_decode else self._launch_mixed
            launch(plan)
        torch.cuda.synchronize()
        self._stage_padding()

    def _stage_padding(self) -> None:
        """Every row of the device's block names the padding slot: what is captured touches nothing real."""
        view = self.staging.next()
        view["slots"][:] = self.padding
        view["starts"][:] = 0
        self.staging.send(greedy=False)
        torch.cuda.synchronize()

    def _touch_everything(self) -> None:
        """Calls each step at each size, for what its kernels need compiled."""
        self._stage_padding()
        rows = [rows for rows in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512) if rows <= self.padding]
        for count in sorted({*rows, self.padding, *self.greedy_graphs.buckets}):
            self._greedy_step(count)
        self.mixed.touch()
        self._run_warm_up_plans()

    def _capture(self) -> None:
        total = 2 * len(self.greedy_graphs.buckets)

        def report(done: int, _: int) -> None:
            self._report("graphs", "", done / max(1, total))

        self.greedy_graphs.capture(self._greedy_step, report)
        self.forward_graphs.capture(self._forward_step, report)
        self.mixed.capture(self.greedy_graphs.pool, self.stream, lambda done: self._report("graphs", "", done))

    def describe_kernels(self) -> list[dict[str, Any]]:
        return describe(self.model.describe_kernels(), self._sample)

    def statistics(self) -> dict[str, Any]:
        return {
            "padding": self._padded_rows,
            "graphs": {
                "buckets": self.greedy_graphs.buckets,
                "captured": len(self.greedy_graphs.captured) + len(self.forward_graphs.captured) + self.mixed.captured,
                "compilations_after_ready": self._compilations.count,
                "compiled_after_ready": self._compilations.names,
            },
        }

    def close(self) -> None:
        if self._mover is not None:
            self._mover.close()
        torch.cuda.synchronize(self.device)
        os.close(self.landed_fd)


def _to_host(sampled: Sampled) -> Sampled:
    """Queues copies into pinned memory; they are whole once the step has landed."""

    def copied(part: torch.Tensor | None) -> torch.Tensor | None:
        if part is None:
            return None
        there = torch.empty(part.shape, dtype=part.dtype, pin_memory=True)
        return there.copy_(part, non_blocking=True)

    tokens = copied(sampled.tokens)
    assert tokens is not None
    return Sampled(tokens, *(copied(part) for part in sampled[1:]))
