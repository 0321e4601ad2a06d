"""Which graph serves a step with prefill rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tsd.engine.batch import ForwardBatch
from tsd.engine.executor.mixed import MixedSteps
from tsd.engine.executor.rows import HostBatch


@pytest.mark.parametrize("max_rows", [4, 16, 64, 200, 256])
def test_no_graph_has_as_many_rows_as_tokens(max_rows: int) -> None:
    """There the model would take sampled rows for all tokens in order, and a row would get another one's token."""
    nothing: Any = None
    table = torch.zeros((max_rows + 1, 4), dtype=torch.int32)
    steps = MixedSteps(
        nothing, nothing, table[:, 0], table, max_tokens=512, max_rows=max_rows, device=torch.device("cpu")
    )
    steps._graphs = dict.fromkeys(steps.graph_sizes())  # type: ignore[arg-type]
    for rows in range(1, max_rows + 1):
        for tokens in (rows, rows + 1, rows + 30, 256, 257, 511, 512):
            if rows <= tokens <= 512:
                found = steps._bucket(tokens, rows)
                assert found is not None
                assert found.rows >= rows and found.tokens >= tokens and found.tokens > found.rows
    assert steps._bucket(513, 1) is None


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("graphs", [False, True], ids=["without graphs", "with graphs"])
def test_a_step_may_want_the_logits_of_all_its_tokens(rows: int, graphs: bool) -> None:
    """As prompts do whose log-probabilities are asked for: many more than there are rows, whatever the sizes."""
    seen: list[ForwardBatch] = []
    model: Any = SimpleNamespace(
        forward=lambda batch, cache: seen.append(batch) or torch.zeros(len(batch.sample_index))
    )
    cache: Any = SimpleNamespace(page_size=16)
    table = torch.arange(5 * 40, dtype=torch.int32).view(5, 40)
    steps = MixedSteps(model, cache, table[:, 0], table, max_tokens=512, max_rows=4, device=torch.device("cpu"))
    if graphs:
        steps._graphs = dict.fromkeys(steps.graph_sizes())  # type: ignore[arg-type]
    tokens = 512
    counts = np.full(rows, tokens // rows, np.int32)
    starts = np.array([0, *counts.cumsum()], np.int32)
    every = np.arange(tokens, dtype=np.int32)
    slots = np.arange(rows, dtype=np.int32)
    host = HostBatch(slots, every + 7, every, every, starts, counts, every, int(counts.max()), int(counts.max()))
    named = host._asdict()
    logits = steps.run(host, 0)
    assert len(logits) == tokens
    batch = seen[0]
    for field in ("tokens", "positions", "kv_slots", "sample_index", "kv_lens"):
        assert getattr(batch, field)[: len(named[field])].tolist() == named[field].tolist(), field
    assert batch.query_start[: rows + 1].tolist() == starts.tolist()
    assert batch.page_table[:rows].tolist() == table[:rows].tolist()
