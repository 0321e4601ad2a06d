"""The state of each request slot on the host: what stays between steps, and the batch made from it for one step.

A slot keeps its last token, its page table and its request; a plan carries only changes. The CPU backend computes
from these arrays directly.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from tsd.engine.batch import ForwardBatch
from tsd.engine.executor.sampling import SlotSampling
from tsd.engine.live import LiveRequest
from tsd.scheduler.types import Admission, ExecutionPlan


class ScoredPrompt(NamedTuple):
    request_id: int
    prompt: np.ndarray
    alternatives: int


class Rows:
    """Arrays by slot. `apply` first, then `batch`; tokens sampled by a step are stored before the next `batch`."""

    def __init__(self, max_num_seqs: int, max_model_len: int, page_size: int, vocab_size: int) -> None:
        pages = -(-max_model_len // page_size)
        self.page_size = page_size
        self.last_token = np.zeros(max_num_seqs, np.int32)
        self.num_prompt = np.zeros(max_num_seqs, np.int32)
        self.page_table = np.zeros((max_num_seqs, pages), np.int32)
        self.scored: dict[int, ScoredPrompt] = {}
        """By slot, for requests that want their prompt's log-probabilities."""
        self.sampling = SlotSampling(max_num_seqs, vocab_size)

    def apply(self, plan: ExecutionPlan) -> None:
        for admission in plan.admitted:
            self._admit(admission)
        if len(plan.table_slots):
            self.page_table[plan.table_slots, plan.table_index] = plan.table_pages

    def _admit(self, admission: Admission) -> None:
        slot = admission.slot
        request = admission.payload
        assert isinstance(request, LiveRequest)
        submit = request.submit
        self.num_prompt[slot] = admission.num_prompt
        self.scored.pop(slot, None)
        if submit.prompt_logprobs >= 0 and admission.num_tokens == admission.num_prompt:
            prompt = admission.history[: admission.num_prompt].copy()
            self.scored[slot] = ScoredPrompt(admission.request_id, prompt, submit.prompt_logprobs)
        self.sampling.admit(slot, submit, request.seed, admission.history, admission.num_prompt)

    def batch(self, plan: ExecutionPlan) -> ForwardBatch:
        """The step's tensors. Those of a decode-only step are views of small fresh arrays."""
        rows, size = plan.num_rows, self.page_size
        slots, starts, counts = plan.slots[:rows], plan.starts[:rows], plan.counts[:rows]
        kv_lens = starts + counts
        longest = int(kv_lens.max())
        table = self.page_table[slots, : -(-longest // size)]
        if plan.num_decode == rows:
            tokens, positions = self.last_token[slots], starts.copy()
            query_start = np.arange(rows + 1, dtype=np.int32)
            owner = np.arange(rows)
            sample_index = query_start[:rows]
            longest_query = 1
        else:
            query_start = np.zeros(rows + 1, np.int32)
            np.cumsum(counts, out=query_start[1:])
            owner = np.repeat(np.arange(rows), counts)
            positions = np.arange(plan.num_tokens, dtype=np.int32) - np.repeat(query_start[:-1] - starts, counts)
            tokens = np.concatenate((self.last_token[slots[: plan.num_decode]], plan.prefill_tokens))
            sample_index = query_start[1:][plan.samples[:rows] != 0] - 1
            if self.scored:
                sample_index = self._with_prompt_positions(plan, query_start, sample_index)
            longest_query = int(counts.max())
        kv_slots = table[owner, positions // size] * size + positions % size
        as_tensor = torch.from_numpy
        return ForwardBatch(
            tokens=as_tensor(np.ascontiguousarray(tokens, np.int32)),
            positions=as_tensor(np.ascontiguousarray(positions, np.int32)),
            kv_slots=as_tensor(np.ascontiguousarray(kv_slots, np.int32)),
            query_start=as_tensor(query_start),
            kv_lens=as_tensor(np.ascontiguousarray(kv_lens, np.int32)),
            page_table=as_tensor(np.ascontiguousarray(table)),
            sample_index=as_tensor(np.ascontiguousarray(sample_index, np.int32)),
            num_decode=plan.num_decode,
            num_rows=rows,
            max_query_len=longest_query,
            max_kv_len=longest,
            page_size=size,
        )

    def prompt_rows(self, plan: ExecutionPlan) -> list[tuple[int, int, int]]:
        """(row, first, count) of prefill rows whose every position is wanted: their logits follow the sampled ones."""
        if not self.scored:
            return []
        return [
            (row, int(plan.starts[row]), int(plan.counts[row]))
            for row in range(plan.num_decode, plan.num_rows)
            if int(plan.slots[row]) in self.scored and plan.starts[row] < self.num_prompt[plan.slots[row]]
        ]

    def _with_prompt_positions(
        self, plan: ExecutionPlan, query_start: np.ndarray, sample_index: np.ndarray
    ) -> np.ndarray:
        extra = [np.arange(query_start[row], query_start[row] + count) for row, _, count in self.prompt_rows(plan)]
        return np.concatenate((sample_index, *extra)) if extra else sample_index
