"""The bookkeeping of a step in two Triton launches. `reference.py` says what they do."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_UPDATES = 128
_PAGES = 128
_ROWS = 256


@triton.jit(do_not_specialize=["count"])
def _update(cells, pages, table, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    tl.store(table + tl.load(cells + at, mask, 0), tl.load(pages + at, mask, 0), mask)


@triton.jit(do_not_specialize=["padding_slot", "width"])
def _prepare(
    slots,
    starts,
    last_token,
    table,
    tokens,
    positions,
    kv_slots,
    kv_lens,
    row_table,
    padding_slot,
    width,
    page_size,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    slot = tl.load(slots + row)
    start = tl.load(starts + row)
    source = table + slot.to(tl.int64) * width
    target = row_table + row.to(tl.int64) * width
    page = tl.load(source + start // page_size)
    place = page * page_size + start % page_size
    tl.store(tokens + row, tl.load(last_token + slot))
    tl.store(positions + row, start)
    tl.store(kv_lens + row, start + 1)
    tl.store(kv_slots + row, tl.where(slot == padding_slot, -1, place))
    # Only the pages that the row has are copied: what lies behind them is never read.
    used = start // page_size + 1
    for first in range(0, used, BLOCK):
        at = first + tl.arange(0, BLOCK)
        tl.store(target + at, tl.load(source + at, at < used, 0), at < used)


@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["tokens", "slots", "out"])
def _feed(tokens, slots, last_token, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    token = tl.load(tokens + at, mask, 0)
    tl.store(last_token + tl.load(slots + at, mask, 0), tl.maximum(token, 0), mask)
    tl.store(out + at, token, mask)


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
    """As `reference.prepare`; entries of `row_table` past a row's pages are left as they were."""
    updates = update_cells.shape[0]
    if updates:
        grid = (triton.cdiv(updates, _UPDATES),)
        _update[grid](update_cells, update_pages, page_table, updates, BLOCK=_UPDATES)
    _prepare[(slots.shape[0],)](
        slots,
        starts,
        last_token,
        page_table,
        tokens,
        positions,
        kv_slots,
        kv_lens,
        row_table,
        page_table.shape[0] - 1,
        page_table.shape[1],
        page_size,
        BLOCK=_PAGES,
    )


def feed(tokens: torch.Tensor, slots: torch.Tensor, last_token: torch.Tensor, out: torch.Tensor) -> None:
    """As `reference.feed`."""
    count = tokens.shape[0]
    _feed[(triton.cdiv(count, _ROWS),)](tokens, slots, last_token, out, count, BLOCK=_ROWS)
