"""A small executor for scheduler tests: a token is a hash of all tokens before it, pages hold ids, plans land late."""

from __future__ import annotations

import random
import zlib

import numpy as np

from tsd.scheduler.core import Scheduler
from tsd.scheduler.types import ExecutionPlan, RequestSpec, SchedulerConfig, StepLanded


def next_token(history: list[int]) -> int:
    """The fake model: a function of every token so far."""
    return zlib.crc32(np.asarray(history, np.int32).tobytes()) % 50


def oracle(prompt: list[int], max_tokens: int, stops: tuple[int, ...], min_tokens: int, longest: int) -> list[int]:
    history = list(prompt)
    out: list[int] = []
    while len(out) < max_tokens and len(history) < longest:
        token = next_token(history)
        history.append(token)
        out.append(token)
        if token in stops and len(out) >= min_tokens:
            break
    return out


class Executor:
    """Keeps page contents and per-slot state as a real one does; runs plans late, in order."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.pages = np.full((config.num_pages, config.page_size), -1, np.int64)
        self.table: dict[tuple[int, int], int] = {}
        self.last: dict[int, int] = {}
        self.size = config.page_size
        self.pending: list[tuple[ExecutionPlan, list[tuple[int, int, int, list[int], dict[int, int]]]]] = []

    def launch(self, plan: ExecutionPlan) -> StepLanded:
        for slot in plan.released.tolist():
            self.last.pop(slot, None)
            self.table = {key: page for key, page in self.table.items() if key[0] != slot}
        changes = list(zip(plan.table_slots.tolist(), plan.table_index.tolist(), strict=True))
        assert len(set(changes)) == len(changes), "a page-table cell was written twice in one plan"
        for slot, index, page in zip(
            plan.table_slots.tolist(), plan.table_index.tolist(), plan.table_pages.tolist(), strict=True
        ):
            self.table[slot, index] = page
        for admission in plan.admitted:
            assert len(admission.history) == admission.num_tokens
        tokens = np.zeros(plan.num_rows, np.int32)
        at = 0
        assert plan.counts.sum() == plan.num_tokens
        for row in range(plan.num_rows):
            slot, start, count = int(plan.slots[row]), int(plan.starts[row]), int(plan.counts[row])
            if row < plan.num_decode:
                ids = [self.last[slot]]
            else:
                ids = plan.prefill_tokens[at : at + count].tolist()
                at += count
            for offset, token in enumerate(ids):
                position = start + offset
                self.pages[self.table[slot, position // self.size], position % self.size] = token
            if plan.samples[row]:
                history = [
                    int(self.pages[self.table[slot, position // self.size], position % self.size])
                    for position in range(start + count)
                ]
                tokens[row] = next_token(history)
                self.last[slot] = int(tokens[row])
        return StepLanded(plan.step, tokens)


def drive(
    config: SchedulerConfig, specs: list[RequestSpec], *, abort_rate: float = 0.0, seed: int = 0, check: bool = True
) -> tuple[dict[int, list[int]], dict[int, str], Scheduler]:
    """Runs the requests to their ends, submitting at random times."""
    rng = random.Random(seed)
    scheduler = Scheduler(config)
    executor = Executor(config)
    outputs: dict[int, list[int]] = {spec.request_id: [] for spec in specs}
    reasons: dict[int, str] = {}
    waiting = list(specs)
    flying: list[StepLanded] = []
    now = 0.0
    idle = 0
    while waiting or scheduler.has_work:
        now += 1.0
        while waiting and rng.random() < 0.5:
            scheduler.submit(waiting.pop(0), now)
        if abort_rate and rng.random() < abort_rate:
            scheduler.abort(rng.choice(specs).request_id, now)
        plan = scheduler.next_plan(now)
        if plan is not None:
            flying.append(executor.launch(plan))
        if flying and (plan is None or rng.random() < 0.5):
            outcome = scheduler.advance(flying.pop(0), now)
            assert outcome is not None
            for request_id, token in zip(outcome.request_ids.tolist(), outcome.tokens.tolist(), strict=True):
                assert request_id not in reasons
                outputs[request_id].append(token)
        for end in scheduler.take_finished():
            assert end.request_id not in reasons, "two terminal events"
            reasons[end.request_id] = end.reason
            assert end.num_output == len(outputs[end.request_id])
        if check:
            scheduler.integrity()
        idle = idle + 1 if plan is None and not flying and not waiting else 0
        assert idle < 10, "no progress"
    scheduler.integrity()
    return outputs, reasons, scheduler
