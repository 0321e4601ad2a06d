"""What an executor runs before it is ready: every step at every size, for the kernels that they need.

`touch` calls the steps' bodies: the executor on its GPU, `engine/variants.py` on torch's `meta` device, to learn which
kernels there are to compile before any GPU is open. Both make the same launches, since both call the same code.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from tsd.engine.executor.decode import DecodeSteps
from tsd.engine.executor.mixed import MixedSteps
from tsd.engine.live import LiveRequest
from tsd.engine.protocol import SamplingParams, Submit
from tsd.kernels.registry import Selection
from tsd.kernels.sampling.types import greedy_state
from tsd.scheduler.types import Admission, ExecutionPlan

UNGRAPHED_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Decode steps without graphs have any number of rows; these meet each kernel's variants."""


def touch(decode: DecodeSteps, mixed: MixedSteps, sample: Selection, *, max_rows: int, vocab_size: int) -> None:
    """Calls each step at each size once, with no block for it to take: what runs touches nothing real."""
    # Sampling first: its kernels take the longest to compile.
    for count in sorted({1, 2, max_rows}):
        _touch_sampling(sample, count, vocab_size, decode.model.dtype, decode.device)
    # What is drawn in other ways than greedily is fed by a launch of its own.
    decode.feed(decode.last_token[:1], decode.staging.fields["slots"][:1])
    decode.run_changes()
    mixed.touch(graphs=bool(decode.buckets))
    rows = {*decode.buckets, max_rows} if decode.buckets else {size for size in UNGRAPHED_ROWS if size <= max_rows}
    for count in sorted({*rows, max_rows}):
        decode.greedy(count)


def _touch_sampling(sample: Selection, rows: int, vocab_size: int, dtype: torch.dtype, device: torch.device) -> None:
    """Draws `rows` rows in each way that kernels tell apart: filters, log-probabilities, penalties and the like."""
    logits = torch.zeros((rows, vocab_size), dtype=dtype, device=device)
    plain = greedy_state(rows, device)
    drawn = replace(plain, greedy=False, temperature=torch.ones_like(plain.temperature))
    bias = torch.zeros((rows, 1), device=device)
    for state in (plain, drawn, replace(drawn, filtered=True)):
        sample(logits, state)
        sample(logits, replace(state, logprobs=1))
        edited = replace(state, bias_ids=bias.to(torch.int32), bias_values=bias)
        sample(logits, edited)
        sample(logits, replace(edited, logprobs=1))


def warm_up_plans(page_size: int) -> Iterator[ExecutionPlan]:
    """A prompt of half a page, then one decode step, once greedy and once sampled; slot 0 and page 0 throughout."""
    length = page_size // 2
    history = np.arange(length, dtype=np.int32)
    none = np.zeros(0, np.int32)
    for params in (SamplingParams(temperature=0.0), SamplingParams(top_k=4, top_p=0.9, seed=1, logprobs=1)):
        submit = Submit(0, history.tobytes(), 2, params)
        admission = Admission(0, 0, length, length, 0, history, LiveRequest(0, submit, 0.0, 1))
        zero = np.zeros(1, np.int32)
        yield ExecutionPlan(
            step=0,
            num_rows=1,
            num_decode=0,
            num_tokens=length,
            slots=zero,
            starts=zero,
            counts=np.full(1, length, np.int32),
            samples=np.ones(1, np.uint8),
            prefill_tokens=history,
            admitted=[admission],
            table_slots=zero,
            table_index=zero,
            table_pages=zero,
            released=none,
            zero_pages=none,
        )
        yield ExecutionPlan(
            step=0,
            num_rows=1,
            num_decode=1,
            num_tokens=1,
            slots=zero,
            starts=np.full(1, length, np.int32),
            counts=np.ones(1, np.int32),
            samples=np.ones(1, np.uint8),
            prefill_tokens=none,
            admitted=[],
            table_slots=none,
            table_index=none,
            table_pages=none,
            released=none,
            zero_pages=none,
        )
