"""Plans that touch every path of an executor once, made without a scheduler."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tsd.engine.live import LiveRequest
from tsd.engine.protocol import SamplingParams, Submit
from tsd.scheduler.types import Admission, ExecutionPlan


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
