"""Decode steps on a GPU: every row has one token, and a graph holds the whole step.

Owns the staged inputs, the graphs by bucket of rows, and the two bodies they record: forward only, and forward with
greedy sampling. Knows slots and pages; what a step's tokens are for is the executor's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from tsd.engine.batch import ForwardBatch, KVCache
from tsd.engine.executor.graphs import StepGraphs, buckets_for
from tsd.engine.executor.rows import Rows
from tsd.engine.executor.staging import UPDATES, Staging, TokenRing
from tsd.engine.executor.wake import Landing
from tsd.engine.models import Decoder
from tsd.kernels.registry import Selection, select
from tsd.kernels.sampling.types import SamplingState, greedy_state
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
        tokens: TokenRing,
        landing: Landing,
        stream: torch.cuda.Stream,
        *,
        use_graphs: bool,
    ) -> None:
        self.model = model
        self.cache = cache
        self.last_token = last_token
        self.page_table = page_table
        self.tokens = tokens
        self.device = last_token.device
        self.padded_rows = 0
        self._sample = sample
        self._rows = rows
        self._padding = max_rows = len(last_token) - 1
        self._prepare = select("step.prepare", dtype="int32", device=self.device)
        self._feed = select("step.feed", dtype="int32", device=self.device)
        most, pages = tokens.device.shape[0], page_table.shape[1]
        self.staging = Staging(most, max_rows * pages, self.device, landing)
        self._inputs = torch.zeros((4, most), dtype=torch.int32, device=self.device)
        self._row_table = torch.zeros((most, pages), dtype=torch.int32, device=self.device)
        self._greedy_state = greedy_state(most, self.device)
        self._row_index = torch.arange(most + 1, dtype=torch.int32, device=self.device)
        buckets = buckets_for(max_rows) if use_graphs else []
        self.greedy_graphs = StepGraphs(buckets, stream)
        self.forward_graphs = StepGraphs(buckets, stream)

    @property
    def buckets(self) -> list[int]:
        return self.greedy_graphs.buckets

    @property
    def captured(self) -> int:
        return len(self.greedy_graphs.captured) + len(self.forward_graphs.captured)

    def bucket(self, rows: int) -> int | None:
        """The graph that serves `rows` rows, or None."""
        return self.greedy_graphs.bucket(rows)

    def run_greedy(self, rows: int) -> None:
        """Queues a staged greedy step of `rows` rows; its tokens are in the token ring's device row."""
        self.staging.send(greedy=True)
        if rows in self.greedy_graphs.captured:
            self.greedy_graphs.replay(rows)
        else:
            self.greedy(rows)

    def run_forward(self, rows: int) -> torch.Tensor:
        """Queues a staged step without sampling; logits [rows, V], valid until the next step."""
        self.staging.send(greedy=False)
        return self.forward_graphs.replay(rows) if rows in self.forward_graphs.captured else self.forward(rows)

    def feed(self, tokens: torch.Tensor, slots: torch.Tensor) -> None:
        """Makes drawn tokens the next step's input, and puts them on their way to the host."""
        self._feed(tokens, slots, self.last_token, self.tokens.device)

    def stage(self, plan: ExecutionPlan, bucket: int) -> dict[str, np.ndarray]:
        """The block of a decode step: page-table changes, slots and positions, padded to the bucket."""
        rows = plan.num_rows
        view = self._stage_updates(plan)
        view["slots"][:rows] = plan.slots[:rows]
        view["starts"][:rows] = plan.starts[:rows]
        if rows < bucket:
            view["slots"][rows:bucket] = self._padding
            view["starts"][rows:bucket] = 0
        self.padded_rows = bucket - rows
        return view

    def _stage_updates(self, plan: ExecutionPlan) -> dict[str, np.ndarray]:
        """The block for this step, page-table changes filled in; those beyond a block's room are sent ahead."""
        view = self.staging.next()
        count = len(plan.table_slots)
        if count > UPDATES:
            self.send_updates(plan)
        elif count:
            cells = plan.table_slots * self.page_table.shape[1] + plan.table_index
            self.staging.update(view, cells, plan.table_pages)
        return view

    def stage_sampling(self, view: dict[str, np.ndarray], slots: np.ndarray, token_index: np.ndarray) -> SamplingState:
        """Puts the rows' sampling parameters into the block, and gives them as they will be on the device."""
        sampling, rows = self._rows.sampling, len(slots)
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

    def forward(self, rows: int) -> torch.Tensor:
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

    def greedy(self, rows: int) -> torch.Tensor:
        """A whole greedy step; tokens [rows], already fed to the next step."""
        return self.draw_greedy(self.forward(rows), self.staging.device.fields["slots"][:rows])

    def draw_greedy(self, logits: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """Each row's likeliest token [rows], fed to the next step and put on its way to the host."""
        rows = len(logits)
        state, out = _first_rows(self._greedy_state, rows), self.tokens.device[:rows]
        if self._sample.spec.name == "triton":  # this one feeds the token as it draws it
            self._sample(logits, state, out=out, feed=self.last_token, feed_rows=slots)
        else:
            self._feed(self._sample(logits, state).tokens, slots, self.last_token, out)
        return out

    def send_updates(self, plan: ExecutionPlan) -> None:
        """Page-table changes of a step that has no graph of its own to carry them."""
        if len(plan.table_slots):
            cells = plan.table_slots.astype(np.int64) * self.page_table.shape[1] + plan.table_index
            block = torch.from_numpy(np.stack((cells, plan.table_pages.astype(np.int64)))).pin_memory()
            there = block.to(self.device, non_blocking=True)
            self.page_table.view(-1)[there[0]] = there[1].to(torch.int32)

    def stage_padding(self) -> None:
        """Every row of the device's block names the padding slot: what is captured touches nothing real."""
        view = self.staging.next()
        view["slots"][:] = self._padding
        view["starts"][:] = 0
        self.staging.send(greedy=False)
        torch.cuda.synchronize()

    def capture(self, report: Callable[[float], None]) -> None:
        total = 2 * len(self.buckets)
        self.greedy_graphs.capture(self.greedy, lambda done, _: report(done / total))
        self.forward_graphs.capture(self.forward, lambda done, _: report(0.5 + done / total))


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
