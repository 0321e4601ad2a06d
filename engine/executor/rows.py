"""The state of each request slot on the host: what stays between steps, and the batch made from it for one step.

A slot keeps its last token, its page table and its request; a plan carries only changes. The CPU backend computes
from these arrays directly.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from tsd.engine.batch import ForwardBatch
from tsd.engine.executor.blocks import write_cells
from tsd.engine.executor.sampling import SlotSampling
from tsd.engine.live import LiveRequest
from tsd.scheduler.types import Admission, ExecutionPlan


class ScoredPrompt(NamedTuple):
    request_id: int
    prompt: np.ndarray
    alternatives: int


class HostBatch(NamedTuple):
    """Int32 arrays of one step, as in `ForwardBatch`; `slots` [B]."""

    slots: np.ndarray
    tokens: np.ndarray
    positions: np.ndarray
    kv_slots: np.ndarray
    query_start: np.ndarray
    kv_lens: np.ndarray
    sample_index: np.ndarray
    max_query_len: int
    max_kv_len: int


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
            write_cells(self.page_table, plan.table_slots, plan.table_index, plan.table_pages)

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
        row = None
        if request.make_grammar_row is not None:
            row = request.make_grammar_row()
            row.replay(admission.history[admission.num_prompt :].tolist())
        self.sampling.constrain(slot, row)

    def lay_out(self, plan: ExecutionPlan) -> HostBatch:
        """The step's rows as arrays. A decode row's token is -1 - slot: it is taken from the slot's last token."""
        rows, size = plan.num_rows, self.page_size
        slots, starts, counts = plan.slots[:rows], plan.starts[:rows], plan.counts[:rows]
        kv_lens = starts + counts
        if plan.num_decode == rows:
            query_start = np.arange(rows + 1, dtype=np.int32)
            owner: np.ndarray = query_start[:rows]
            tokens, positions, sample_index = -1 - slots, starts, query_start[:rows]
            longest_query = 1
        else:
            query_start = np.zeros(rows + 1, np.int32)
            np.cumsum(counts, out=query_start[1:])
            owner = np.repeat(np.arange(rows, dtype=np.int32), counts)
            positions = np.arange(plan.num_tokens, dtype=np.int32) - np.repeat(query_start[:-1] - starts, counts)
            tokens = np.concatenate((-1 - slots[: plan.num_decode], plan.prefill_tokens))
            sample_index = query_start[1:][plan.samples[:rows] != 0] - 1
            if self.scored:
                sample_index = self._with_prompt_positions(plan, query_start, sample_index)
            longest_query = int(counts.max())
        pages = self.page_table[slots[owner], positions // size]
        return HostBatch(
            slots=slots,
            tokens=tokens,
            positions=positions,
            kv_slots=pages * size + positions % size,
            query_start=query_start,
            kv_lens=kv_lens,
            sample_index=sample_index,
            max_query_len=longest_query,
            max_kv_len=int(kv_lens.max()),
        )

    def batch(self, plan: ExecutionPlan) -> ForwardBatch:
        """The step's tensors on the host."""
        host = self.lay_out(plan)
        pages = -(-host.max_kv_len // self.page_size)
        tokens = host.tokens.copy()
        tokens[: plan.num_decode] = self.last_token[host.slots[: plan.num_decode]]
        return ForwardBatch(
            tokens=_tensor(tokens),
            positions=_tensor(host.positions),
            kv_slots=_tensor(host.kv_slots),
            query_start=_tensor(host.query_start),
            kv_lens=_tensor(host.kv_lens),
            page_table=_tensor(self.page_table[host.slots, :pages]),
            sample_index=_tensor(host.sample_index),
            num_decode=plan.num_decode,
            num_rows=plan.num_rows,
            max_query_len=host.max_query_len,
            max_kv_len=host.max_kv_len,
            page_size=self.page_size,
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
        wanted = np.concatenate((sample_index, *extra)) if extra else sample_index
        if len(wanted) == plan.num_tokens and np.any(np.diff(wanted) != 1):
            # As many as tokens means all of them in order (see `ForwardBatch`): one twice makes it more.
            wanted = np.append(wanted, wanted[-1])
        return wanted


def _tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, np.int32))
