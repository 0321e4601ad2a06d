"""Which graph serves a step with prefill rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tsd.engine.executor.mixed import MixedSteps


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
