"""The rows of a step that other libraries' prefill gets: found once a step, on the device, and kept on its batch."""

from __future__ import annotations

from typing import NamedTuple

import torch

from tsd.kernels.attention.reference import PagedBatch


class Longer(NamedTuple):
    """As many rows as the batch has: first those from its first row of more than one token on, then empty ones."""

    query_start: torch.Tensor
    """int32 [B + 1]: first token of each, the first of them past the tokens that decode."""
    kv_lens: torch.Tensor
    """int32 [B]; 0 for the empty ones."""
    page_table: torch.Tensor
    """int32 [B, P]."""


def longer_rows(batch: PagedBatch) -> Longer:
    """The batch without the rows of one token that it begins with. Rows of one token further on stay.

    How many those are is known on the device alone: shapes are the batch's, so that a CUDA graph may hold this.
    """
    found: Longer | None = getattr(batch, "longer", None)
    if found is None:
        rows = batch.num_rows
        skipped = (batch.query_start.diff() == 1).to(torch.int32).cumprod(0).sum()
        place = torch.arange(rows + 1, device=batch.kv_lens.device) + skipped
        starts = batch.query_start.index_select(0, place.clamp_max(rows))
        here = place[:rows].clamp_max(rows - 1)
        lens = torch.where(place[:rows] < rows, batch.kv_lens.index_select(0, here), 0)
        found = Longer(starts, lens.to(torch.int32), batch.page_table.index_select(0, here))
        batch.longer = found  # type: ignore[attr-defined]
    return found
