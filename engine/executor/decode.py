"""Decode steps on a GPU: every row has one token, and a graph holds the whole step.

Owns the steps' inputs on the device, the graphs by bucket of rows, and the two bodies they record: forward only, and
forward with greedy sampling. Knows slots and pages; what a step's tokens are for is the executor's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from tsd.engine.batch import ForwardBatch, KVCache
from tsd.engine.executor.graphs import CapturedStep, StepGraphs, buckets_for, record
from tsd.engine.executor.rows import Rows
from tsd.engine.executor.staging import Staging
from tsd.engine.executor.wake import Landing
from tsd.engine.models import Decoder
from tsd.kernels.registry import Selection, select
from tsd.kernels.sampling.types import SamplingState, greedy_state
from tsd.kernels.step.exchange import UPDATES, Feed
from tsd.scheduler.types import ExecutionPlan


class DecodeSteps:
    """`last_token` [R + 1] and `page_table` [R + 1, P] are the executor's slot state; slot R is for padding rows."""

    def __init__(
        self,
        model: Decoder,
        cache: KVCache,
        sample: Selection,
        rows: Rows,
        last_token: torch.Tensor,
        page_table: torch.Tensor,
        staging: Staging,
        landing: Landing,
        stream: torch.cuda.Stream,
        *,
        use_graphs: bool,
    ) -> None:
        self.model = model
        self.cache = cache
        self.last_token = last_token
        self.page_table = page_table
        self.staging = staging
        self.device = last_token.device
        self._sample = sample
        self._rows = rows
        self._stream = stream
        self._landing = landing
        max_rows = len(last_token) - 1
        self._prepare = select("step.prepare", dtype="int32", device=self.device)
        self._feed = select("step.feed", dtype="int32", device=self.device)
        most, pages = staging.exchange.most, page_table.shape[1]
        self._inputs = torch.zeros((4, most), dtype=torch.int32, device=self.device)
        self._row_table = torch.zeros((most, pages), dtype=torch.int32, device=self.device)
        self._greedy_state = greedy_state(most, self.device)
        self._row_index = torch.arange(most + 1, dtype=torch.int32, device=self.device)
        buckets = buckets_for(max_rows) if use_graphs else []
        self.greedy_graphs = StepGraphs(buckets, stream, landing)
        self.forward_graphs = StepGraphs(buckets, stream, landing)
        self._changes_graph: CapturedStep | None = None

    @property
    def buckets(self) -> list[int]:
        return self.greedy_graphs.buckets

    @property
    def captured(self) -> int:
        return len(self.greedy_graphs.captured) + len(self.forward_graphs.captured)

    def bucket(self, rows: int) -> int | None:
        """The graph that serves `rows` rows, or None."""
        return self.greedy_graphs.bucket(rows)

    def send(self, plan: ExecutionPlan, rows: bool) -> int:
        """Gives the device the plan's page-table changes, with its decode rows if asked; the block's serial number.

        The step that takes it must be launched next: `run_greedy`, `run_forward` or, without rows, `run_changes`.
        """
        if len(plan.table_slots) > UPDATES:
            self._send_ahead(plan)
            plan = replace(plan, table_slots=plan.table_slots[:0])
        return self.staging.send(plan, rows)

    def send_nothing(self) -> int:
        """A step without rows and changes, queued; the serial number of its block."""
        serial = self.staging.blocks.send()
        self.run_changes()
        return serial

    def tell_end(self) -> None:
        """Queues the time into the answer of a step that draws nothing."""
        self.feed(self.last_token[:0], self.staging.fields["slots"][:0])

    def run_greedy(self, rows: int) -> None:
        """Queues a greedy step of `rows` rows; its tokens will be in the block's answer."""
        if rows in self.greedy_graphs.captured:
            self.greedy_graphs.replay(rows)
        else:
            self.greedy(rows)

    def run_forward(self, rows: int) -> torch.Tensor:
        """Queues a step without sampling; logits [rows, V], valid until the next step."""
        return self.forward_graphs.replay(rows) if rows in self.forward_graphs.captured else self.forward(rows)

    def run_changes(self) -> None:
        """Queues the page-table changes of a block without rows."""
        if self._changes_graph is not None:
            self._changes_graph.replay(self._landing)
        else:
            self._take_block(0)

    def feed(self, tokens: torch.Tensor, slots: torch.Tensor) -> None:
        """Makes drawn tokens the next step's input, and puts them into the step's answer."""
        self._feed(tokens, slots, self.last_token, self.staging.exchange)

    def send_sampled(self, plan: ExecutionPlan) -> tuple[int, SamplingState]:
        """As `send` with rows, whose sampling parameters go with them; also the state that these will be there."""
        blocks, sampling, rows, slots = self.staging.blocks, self._rows.sampling, plan.num_rows, plan.slots
        blocks.stage(slots, plan.starts)
        blocks.stage_sampling(
            sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, sampling.seeds, self._rows.num_prompt
        )
        return self.send(plan, rows=False), self.sampling_state(rows, slots)

    def sampling_state(self, rows: int, slots: np.ndarray) -> SamplingState:
        """What `rows` rows of slots `slots` ask of sampling, as it lies on the device once their block is taken."""
        sampling = self._rows.sampling
        fields = {name: field[:rows] for name, field in self.staging.fields.items()}
        return SamplingState(
            temperature=fields["temperature"],
            top_k=fields["top_k"],
            top_p=fields["top_p"],
            min_p=fields["min_p"],
            seeds=fields["seeds"],
            token_index=fields["token_index"],
            filtered=sampling.is_filtered(slots),
        )

    def _take_block(self, rows: int) -> torch.Tensor:
        """Queues the taking of the next block, for as many rows; their slots [rows]."""
        tokens, positions, kv_slots, kv_lens = (self._inputs[i, :rows] for i in range(4))
        self._prepare(
            self.staging.exchange,
            self.last_token,
            self.page_table,
            tokens,
            positions,
            kv_slots,
            kv_lens,
            self._row_table[:rows],
            self.cache.page_size,
        )
        return self.staging.fields["slots"][:rows]

    def forward(self, rows: int) -> torch.Tensor:
        """Logits [rows, V] of the decode rows of the next block."""
        self._take_block(rows)
        tokens, positions, kv_slots, kv_lens = (self._inputs[i, :rows] for i in range(4))
        table = self._row_table[:rows]
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

    def greedy(self, rows: int) -> torch.Tensor:
        """A whole greedy step; tokens [rows], already fed to the next step."""
        return self.draw_greedy(self.forward(rows), self.staging.fields["slots"][:rows])

    def draw_greedy(self, logits: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """Each row's likeliest token [rows], fed to the next step and put into the step's answer."""
        state = _first_rows(self._greedy_state, len(logits))
        if self._sample.spec.name == "triton":  # this one feeds the token as it draws it
            return self._sample(logits, state, feed=Feed(self.last_token, slots, self.staging.exchange)).tokens
        tokens = self._sample(logits, state).tokens
        self.feed(tokens, slots)
        return tokens

    def _send_ahead(self, plan: ExecutionPlan) -> None:
        """Page-table changes that are too many for a block."""
        cells = plan.table_slots.astype(np.int64) * self.page_table.shape[1] + plan.table_index
        block = torch.from_numpy(np.stack((cells, plan.table_pages.astype(np.int64)))).pin_memory()
        there = block.to(self.device, non_blocking=True)
        self.page_table.view(-1)[there[0]] = there[1].to(torch.int32)

    def capture(self, report: Callable[[float], None]) -> None:
        total = 2 * len(self.buckets)
        self.greedy_graphs.capture(self.greedy, lambda done, _: report(done / total))
        self.forward_graphs.capture(self.forward, lambda done, _: report(0.5 + done / total))
        graph, slots = record(partial(self._take_block, 0), self._stream, self.greedy_graphs.pool)
        self._changes_graph = CapturedStep(graph, 0, slots)


def _first_rows(state: SamplingState, rows: int) -> SamplingState:
    """The first rows of a state whose options are off."""
    return replace(
        state,
        temperature=state.temperature[:rows],
        top_k=state.top_k[:rows],
        top_p=state.top_p[:rows],
        min_p=state.min_p[:rows],
        seeds=state.seeds[:rows],
        token_index=state.token_index[:rows],
    )
