"""Token embedding in plain torch, any dtype and device, dense or packed tables."""

from __future__ import annotations

import torch

from tsd.kernels.weight import Weight


def lookup(ids: torch.Tensor, weight: Weight, *, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Rows of the table [V, H] at ids [T] -> [T, H]. A dense table keeps its dtype, a packed one answers in `dtype`."""
    if weight.method == "dense" and weight.unpack is None:
        return weight.tensors["w"].index_select(0, ids.to(torch.int64))
    return weight.rows(ids, dtype)
