"""Prefill by flashinfer beside our own decode. `plans.py` says how a step is planned; here it is launched.

A batch carries its plans (`ForwardBatch.plans`); the executor has had them made before the step, or before its graph
is replayed.
"""

from __future__ import annotations

import torch

from tsd.kernels.attention.reference import PagedBatch
from tsd.kernels.flashinfer.library import check_version
from tsd.kernels.flashinfer.plans import Plans
from tsd.kernels.triton import attention
from tsd.kernels.triton.decode import decode

check_version()


def paged(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, batch: PagedBatch, scale: float
) -> torch.Tensor:
    """As `attention.reference.paged`. A batch with rows of more than one token must have been planned."""
    if batch.max_query_len == 1:
        return attention.paged(q, k_cache, v_cache, batch, scale)
    plans = batch.plans
    assert isinstance(plans, Plans), "a step with prefill rows was not planned"
    tokens, num_q, head_dim = q.shape
    out = torch.empty_like(q)
    plans.run(q, k_cache, v_cache, out, batch.num_rows, batch.page_table, scale)
    out = out.view(tokens, num_q * head_dim)
    if batch.num_decode > 0:
        decode(q, k_cache, v_cache, out, batch, scale)
    return out
