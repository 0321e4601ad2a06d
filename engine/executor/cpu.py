"""The CPU backend: the same plans, run in order by one thread while the loop goes on in another.

The thread owns the row state, the KV pages and the model; kernels give up the interpreter lock while they compute.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from typing import Any

import numpy as np
import torch

from tsd.engine.batch import KVCache
from tsd.engine.executor.base import DeviceFault, MoveEvent, StepResult
from tsd.engine.executor.rows import Rows
from tsd.engine.executor.sampling import logprobs_of, prompt_logprobs_of
from tsd.engine.executor.warmup import warm_up_plans
from tsd.engine.kernel_report import describe
from tsd.engine.models import Decoder
from tsd.engine.tiers import BlockStore, HostPages, Mover
from tsd.kernels.registry import Selection
from tsd.scheduler.types import ExecutionPlan


class CpuExecutor:
    """See `Executor`. `close` waits for the step in hand."""

    def __init__(
        self,
        model: Decoder,
        cache: KVCache,
        sample: Selection,
        *,
        max_num_seqs: int,
        max_model_len: int,
        vocab_size: int,
        host_pages: int = 0,
        disk: BlockStore | None = None,
    ) -> None:
        self.model = model
        self.cache = cache
        self.rows = Rows(max_num_seqs, max_model_len, cache.page_size, vocab_size)
        self.landed_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._sample = sample
        self._orders: queue.SimpleQueue[ExecutionPlan | None] = queue.SimpleQueue()
        self._landed: deque[StepResult | MoveEvent | BaseException] = deque()
        self._mover = Mover(cache, HostPages(cache, host_pages), disk, self._tell) if host_pages else None
        self._thread = threading.Thread(target=self._work, name="tsd-executor", daemon=True)
        self._thread.start()

    def launch(self, plan: ExecutionPlan) -> None:
        self._orders.put(plan)

    def landed(self) -> list[StepResult | MoveEvent]:
        try:
            os.eventfd_read(self.landed_fd)
        except BlockingIOError:
            return []
        results: list[StepResult | MoveEvent] = []
        while self._landed:
            result = self._landed.popleft()
            if isinstance(result, BaseException):
                raise DeviceFault(f"a step failed: {type(result).__name__}: {result}") from result
            results.append(result)
        return results

    def warm_up(self, compiled: bool = False) -> dict[str, Any]:
        """Runs a prefill and a decode step on page 0, which no request owns yet."""
        for plan in warm_up_plans(self.cache.page_size):
            with torch.inference_mode():
                self._run(plan)
        return {"buckets": [], "captured": 0, "compilations_after_ready": 0}

    def describe_kernels(self) -> list[dict[str, Any]]:
        return describe(self.model.describe_kernels(), self._sample)

    def statistics(self) -> dict[str, Any]:
        return {"graphs": {"buckets": [], "captured": 0, "compilations_after_ready": 0}}

    def close(self) -> None:
        self._orders.put(None)
        self._thread.join(timeout=5.0)
        if self._mover is not None:
            self._mover.close()
        os.close(self.landed_fd)

    def _work(self) -> None:
        with torch.inference_mode():
            while (plan := self._orders.get()) is not None:
                try:
                    self._tell(self._run(plan))
                except BaseException as error:
                    # Told to the loop, which ends the engine: a thread's own traceback would be lost.
                    self._tell(error)

    def _tell(self, result: StepResult | MoveEvent | BaseException) -> None:
        self._landed.append(result)
        os.eventfd_write(self.landed_fd, 1)

    def _run(self, plan: ExecutionPlan) -> StepResult:
        began = time.monotonic()
        rows = self.rows
        rows.apply(plan)
        for page in plan.zero_pages.tolist():
            for tensor in (*self.cache.k, *self.cache.v):
                tensor[page].zero_()
        if plan.moves:
            assert self._mover is not None
            self._mover.submit(plan.moves)
        if not plan.num_rows:
            return StepResult(plan.step, np.zeros(0, np.int32))
        batch = rows.batch(plan)
        if plan.waits:
            assert self._mover is not None
            batch.before_layer = self._mover.waits(plan.waits)
        logits = self.model.forward(batch, self.cache)
        result = StepResult(plan.step, np.zeros(plan.num_rows, np.int32))
        sampling_rows = np.flatnonzero(plan.samples[: plan.num_rows])
        if len(sampling_rows):
            self._draw(plan, sampling_rows, logits[: len(sampling_rows)], result)
        if prompt_rows := rows.prompt_rows(plan):
            self._score_prompts(plan, prompt_rows, logits[len(sampling_rows) :], result)
        result.device_began, result.device_s = began, time.monotonic() - began
        if plan.waits and self._mover is not None:
            # The scheduler hears of the copy's end before it hears of the step's.
            self._mover.finish(plan.waits)
        return result

    def _draw(self, plan: ExecutionPlan, chosen: np.ndarray, logits: torch.Tensor, result: StepResult) -> None:
        sampling = self.rows.sampling
        slots = plan.slots[chosen]
        token_index = plan.starts[chosen] + plan.counts[chosen] - self.rows.num_prompt[slots]
        sampled = self._sample(logits, sampling.state(slots, token_index))
        tokens = sampled.tokens.numpy()
        # The largest logit is NaN where any is, and infinite where the row overflowed.
        finite = torch.isfinite(logits.amax(dim=-1)).numpy()
        if not finite.all():
            result.failed = tuple(int(row) for row in chosen[~finite])
        result.tokens[chosen] = tokens
        self.rows.last_token[slots] = tokens
        sampling.sampled(slots, tokens)
        wanted = sampling.logprobs[slots]
        if (wanted >= 0).any():
            found = logprobs_of(sampled, wanted)
            result.logprobs = {int(chosen[i]): entry for i, entry in found.items()}

    def _score_prompts(
        self, plan: ExecutionPlan, prompt_rows: list[tuple[int, int, int]], logits: torch.Tensor, result: StepResult
    ) -> None:
        offset = 0
        for row, start, count in prompt_rows:
            scored = self.rows.scored[int(plan.slots[row])]
            targets = scored.prompt[start + 1 : start + 1 + count]
            entries = prompt_logprobs_of(logits[offset : offset + len(targets)], targets, scored.alternatives)
            result.prompt_logprobs[scored.request_id] = entries
            offset += count
