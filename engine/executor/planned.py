"""What the executor asks of the chosen kernels: whether they may lie in a CUDA graph, and how they plan a step."""

from __future__ import annotations

import logging
from typing import Any

import torch

from tsd.engine.models import Decoder
from tsd.kernels.spec import GRAPH_SAFE, PrefillSite

log = logging.getLogger("tsd.engine")


def may_record(model: Decoder) -> bool:
    """Whether every kernel of the model's steps may be recorded in a CUDA graph; says so where one may not."""
    specs = {use.selection.spec for use in model.describe_kernels()}
    unsafe = sorted({f"{spec.op} {spec.name}" for spec in specs if GRAPH_SAFE not in spec.flags})
    if unsafe:
        log.info("steps run without CUDA graphs, which may not hold %s", ", ".join(unsafe))
    return not unsafe


def plans_for(model: Decoder, page_size: int, max_tokens: int, max_rows: int, device: torch.device) -> Any:
    """The chosen attention's plans of steps with prefill rows (see `KernelSpec.plans`); None where it makes none."""
    for use in model.describe_kernels():
        if use.op == "attention.paged" and use.selection.plans is not None:
            dtype = str(model.dtype).removeprefix("torch.")
            num_q, num_kv, head_dim = use.shape
            site = PrefillSite(dtype, num_q, num_kv, head_dim, page_size)
            return use.selection.plans(site, max_tokens, max_rows, device)
    return None
