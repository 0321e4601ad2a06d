"""The bookkeeping of a step in plain torch, any device.

Slot state on the device: `last_token` int32 [R + 1] and `page_table` int32 [R + 1, P]; slot R is the padding slot,
whose row computes but writes to no page.
"""

from __future__ import annotations

import torch


def prepare(
    update_cells: torch.Tensor,
    update_pages: torch.Tensor,
    slots: torch.Tensor,
    starts: torch.Tensor,
    last_token: torch.Tensor,
    page_table: torch.Tensor,
    tokens: torch.Tensor,
    positions: torch.Tensor,
    kv_slots: torch.Tensor,
    kv_lens: torch.Tensor,
    row_table: torch.Tensor,
    page_size: int,
) -> None:
    """Applies U page-table changes, then fills the inputs of B decode rows.

    `update_cells` [U] are flat indices into `page_table` (cells of the padding slot change nothing that matters);
    `slots`, `starts` [B] are each row's slot and the position of its one token. Written: `tokens`, `positions`,
    `kv_slots` (-1 for padding), `kv_lens` [B] and `row_table` [B, P].
    """
    page_table.view(-1)[update_cells.long()] = update_pages
    index = slots.long()
    padding = index == page_table.shape[0] - 1
    row_table.copy_(page_table[index])
    tokens.copy_(last_token[index])
    positions.copy_(starts)
    kv_lens.copy_(starts + 1)
    page = row_table.gather(1, (starts // page_size).long().unsqueeze(1)).squeeze(1)
    kv_slots.copy_(torch.where(padding, -1, page * page_size + starts % page_size))


def feed(tokens: torch.Tensor, slots: torch.Tensor, last_token: torch.Tensor, out: torch.Tensor) -> None:
    """The next step's input: last_token[slots[i]] = tokens[i], and out[i] = tokens[i] for the host; [B] int32.

    A row that drew nothing names the padding slot.
    """
    last_token[slots.long()] = tokens.clamp_min(0)
    out[: tokens.shape[0]].copy_(tokens)
