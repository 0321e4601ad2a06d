"""The CUDA backend: plans become graph replays and eager prefill steps on one stream; the host never waits.

State that lasts (last tokens, page tables, KV pages) lives on the device by slot. A step sends one pinned block,
replays a graph, and brings the sampled tokens back on a side stream whose last act writes the eventfd.
"""

from __future__ import annotations

import os
import time
from collections import deque
from typing import Any

import numpy as np
import torch

from tsd.engine.batch import ForwardBatch, KVCache
from tsd.engine.executor import wake
from tsd.engine.executor.base import DeviceFault, MoveResult, StepResult
from tsd.engine.executor.graphs import StepGraphs, buckets_for
from tsd.engine.executor.rows import Rows
from tsd.engine.executor.sampling import logprobs_of, prompt_logprobs_of
from tsd.engine.executor.staging import UPDATES, Staging, TokenRing
from tsd.engine.executor.warmup import warm_up_plans
from tsd.engine.kernel_report import describe
from tsd.engine.models import Decoder
from tsd.kernels.registry import Selection, select
from tsd.kernels.sampling.types import Sampled, SamplingState, greedy_state
from tsd.scheduler.types import ExecutionPlan, Move

RING = 4


class Flight:
    """A step on its way: where its tokens will be, and what of it only the host knows."""

    __slots__ = ("events", "plan", "ring", "rows", "sampled", "scored")

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
        vocab_size: int,
        device: torch.device,
        use_graphs: bool,
        timed: bool,
        report: Any,
    ) -> None:
        self.model = model
        self.cache = cache
        self.device = device
        self.vocab_size = vocab_size
        self.rows = Rows(max_num_seqs, max_model_len, cache.page_size, vocab_size)
        self.padding = max_num_seqs
        self.landed_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.stream = torch.cuda.Stream(device)
        self.compilations_after_ready = 0
        self._sample = sample
        self._prepare = select("step.prepare", dtype="int32", device=device)
        self._feed = select("step.feed", dtype="int32", device=device)
        self._report = report
        self._flights: deque[Flight] = deque()
        self._padded_rows = 0
        self._timed = timed
        self._origin: tuple[torch.cuda.Event, float] | None = None
        most = max_num_seqs + max_num_seqs % 2
        pages = self.rows.page_table.shape[1]
        with torch.cuda.stream(self.stream):
            self.last_token = torch.zeros(max_num_seqs + 1, dtype=torch.int32, device=device)
            self.page_table = torch.zeros((max_num_seqs + 1, pages), dtype=torch.int32, device=device)
            self.staging = Staging(most, RING, max_num_seqs * pages, device)
            self.tokens = TokenRing(most, RING, device)
            self._inputs = torch.zeros((4, most), dtype=torch.int32, device=device)
            self._row_table = torch.zeros((most, pages), dtype=torch.int32, device=device)
            self._out = torch.zeros(most, dtype=torch.int32, device=device)
            self._row_index = torch.arange(most + 1, dtype=torch.int32, device=device)
        self.greedy_graphs = StepGraphs(buckets_for(max_num_seqs) if use_graphs else [], self.stream)
        self.forward_graphs = StepGraphs(buckets_for(max_num_seqs) if use_graphs else [], self.stream)

    # -- the loop's side -------------------------------------------------------------------------------------------

    def launch(self, plan: ExecutionPlan) -> None:
        with torch.cuda.stream(self.stream), torch.inference_mode():
            self.rows.apply(plan)
            began = self._event()
            launch = self._launch_decode if plan.num_decode == plan.num_rows else self._launch_mixed
            flight = launch(plan)
            ended = self._event()
            if began is not None and ended is not None:
                flight.events = (began, ended)
            self.tokens.bring_back(flight.ring, max(1, len(flight.rows)))
        self._flights.append(flight)
        wake.after_stream(self.tokens.stream.cuda_stream, self.landed_fd)

    def submit_moves(self, moves: list[Move]) -> None:
        raise NotImplementedError("the CUDA backend has no host tier yet")

    def landed(self) -> list[StepResult | MoveResult]:
        try:
            count = os.eventfd_read(self.landed_fd)
        except BlockingIOError:
            return []
        try:
            return [self._result(self._flights.popleft()) for _ in range(count)]
        except RuntimeError as error:
            raise DeviceFault(f"a step failed: {error}") from error

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

    # -- decode: one graph a step ----------------------------------------------------------------------------------

    def _launch_decode(self, plan: ExecutionPlan) -> Flight:
        rows = plan.num_rows
        slots, starts = plan.slots[:rows], plan.starts[:rows]
        sampling = self.rows.sampling
        plain = sampling.is_plain(slots)
        greedy = plain and not sampling.temperature[slots].any()
        bucket = self.greedy_graphs.bucket(rows) or rows
        view = self._stage_updates(plan)
        view["slots"][:rows] = slots
        view["slots"][rows:bucket] = self.padding
        view["starts"][:rows] = starts
        view["starts"][rows:bucket] = 0
        ring = self.tokens.next()
        self._padded_rows = bucket - rows
        flight = Flight(plan, ring, np.arange(rows))
        if greedy:
            self.staging.send(greedy=True)
            captured = bucket in self.greedy_graphs.captured
            tokens = self.greedy_graphs.replay(bucket) if captured else self._greedy_step(bucket)
            self.tokens.device[ring, :rows].copy_(tokens[:rows])
            return flight
        token_index = starts + 1 - self.rows.num_prompt[slots]
        state = self._stage_sampling(view, slots, token_index, bucket)
        self.staging.send(greedy=False)
        captured = bucket in self.forward_graphs.captured
        logits = self.forward_graphs.replay(bucket) if captured else self._forward_step(bucket)
        if not plain:
            state = sampling.state(slots, token_index, self.device)
        sampled = self._sample(logits[:rows], state)
        self._keep(flight, sampled, self.staging.device.fields["slots"][:rows], slots)
        return flight

    def _stage_updates(self, plan: ExecutionPlan) -> dict[str, np.ndarray]:
        """The block for this step, page-table changes filled in; those beyond a block's room are sent ahead."""
        pages = self.page_table.shape[1]
        cells = plan.table_slots.astype(np.int64) * pages + plan.table_index
        changed = plan.table_pages
        if len(cells) > UPDATES:
            # A long prompt was admitted: its table is written by one scatter before the step.
            block = torch.from_numpy(np.stack((cells, changed.astype(np.int64)))).pin_memory()
            there = block.to(self.device, non_blocking=True)
            self.page_table.view(-1)[there[0]] = there[1].to(torch.int32)
            cells, changed = cells[:0], changed[:0]
        view = self.staging.next()
        view["cells"][: len(cells)] = cells
        view["pages"][: len(cells)] = changed
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
        out = self._out[:rows]
        self._feed(sampled.tokens, self.staging.device.fields["slots"][:rows], self.last_token, out)
        return out

    # -- steps with prefill rows: launched kernel by kernel ------------------------------------------------------------

    def _launch_mixed(self, plan: ExecutionPlan) -> Flight:
        batch, slots_there = self._mixed_batch(plan)
        logits = self.model.forward(batch, self.cache)
        chosen = np.flatnonzero(plan.samples[: plan.num_rows])
        flight = Flight(plan, self.tokens.next(), chosen)
        self._padded_rows = 0
        if len(chosen):
            slots = plan.slots[chosen]
            token_index = plan.starts[chosen] + plan.counts[chosen] - self.rows.num_prompt[slots]
            state = self.rows.sampling.state(slots, token_index, self.device)
            self._keep(flight, self._sample(logits[: len(chosen)], state), slots_there, slots)
        offset = len(chosen)
        for row, start, count in self.rows.prompt_rows(plan):
            scored = self.rows.scored[int(plan.slots[row])]
            targets = scored.prompt[start + 1 : start + 1 + count]
            entries = prompt_logprobs_of(logits[offset : offset + len(targets)], targets, scored.alternatives)
            flight.scored[scored.request_id] = entries
            offset += count
        return flight

    def _mixed_batch(self, plan: ExecutionPlan) -> tuple[ForwardBatch, torch.Tensor]:
        """The batch on the device, and the slots of the rows that draw."""
        self._stage_updates(plan)
        self.staging.send(greedy=True)
        block = self.staging.device
        self.page_table.view(-1)[block.cells.long()] = block.pages
        host = self.rows.batch(plan)
        fields = (host.tokens, host.positions, host.kv_slots, host.query_start, host.kv_lens, host.sample_index)
        drawing = torch.from_numpy(np.ascontiguousarray(plan.slots[np.flatnonzero(plan.samples[: plan.num_rows])]))
        slots = torch.from_numpy(np.ascontiguousarray(plan.slots[: plan.num_rows]))
        # One pinned block, one copy; the caching host allocator keeps it until the copy is done.
        packed = torch.cat((*fields, slots, drawing)).pin_memory().to(self.device, non_blocking=True)
        sizes = [len(field) for field in (*fields, slots, drawing)]
        tokens, positions, kv_slots, query_start, kv_lens, sample_index, slots, drawing = packed.split(sizes)
        index = slots.long()
        if plan.num_decode:
            tokens[: plan.num_decode] = self.last_token[index[: plan.num_decode]]
        pages = -(-host.max_kv_len // self.cache.page_size)
        batch = ForwardBatch(
            tokens=tokens,
            positions=positions,
            kv_slots=kv_slots,
            query_start=query_start,
            kv_lens=kv_lens,
            page_table=self.page_table[index, :pages].contiguous(),
            sample_index=sample_index,
            num_decode=plan.num_decode,
            num_rows=plan.num_rows,
            max_query_len=host.max_query_len,
            max_kv_len=host.max_kv_len,
            page_size=host.page_size,
        )
        return batch, drawing

    def _keep(self, flight: Flight, sampled: Sampled, slots_there: torch.Tensor, slots: np.ndarray) -> None:
        """Feeds the drawn tokens to the next step and starts them on their way to the host."""
        out = self.tokens.device[flight.ring]
        self._feed(sampled.tokens, slots_there, self.last_token, out)
        wanted = self.rows.sampling.logprobs[slots]
        if (wanted >= 0).any():
            there = [part.to("cpu", non_blocking=True) if part is not None else None for part in sampled]
            flight.sampled = (Sampled(*there), wanted)

    # -- the rest --------------------------------------------------------------------------------------------------

    def warm_up(self) -> dict[str, Any]:
        """Runs every kernel variant, then captures the graphs."""
        with torch.cuda.stream(self.stream), torch.inference_mode():
            for plan in warm_up_plans(self.cache.page_size):
                self.rows.apply(plan)
                launch = self._launch_decode if plan.num_decode else self._launch_mixed
                launch(plan)
            torch.cuda.synchronize()
            view = self.staging.next()
            view["slots"][:] = self.padding
            view["starts"][:] = 0
            self.staging.send(greedy=False)
            torch.cuda.synchronize()
            total = 2 * len(self.greedy_graphs.buckets)

            def report(done: int, _: int) -> None:
                self._report("graphs", "", done / max(1, total))

            self.greedy_graphs.capture(self._greedy_step, report)
            self.forward_graphs.capture(self._forward_step, report)
        if self._timed:
            self._set_origin()
        return self.statistics()["graphs"]

    def describe_kernels(self) -> list[dict[str, Any]]:
        return describe(self.model.describe_kernels(), self._sample)

    def statistics(self) -> dict[str, Any]:
        return {
            "padding": self._padded_rows,
            "graphs": {
                "buckets": self.greedy_graphs.buckets,
                "captured": len(self.greedy_graphs.captured) + len(self.forward_graphs.captured),
                "compilations_after_ready": self.compilations_after_ready,
            },
        }

    def close(self) -> None:
        torch.cuda.synchronize(self.device)
        os.close(self.landed_fd)
