"""The bookkeeping of a step, one Triton launch before it and one after. `reference.py` says what they do."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_PAGES = 128
_ROWS = 256


@triton.jit(do_not_specialize=["count", "rows", "padding_slot", "width"])
def _prepare(
    cells,
    pages,
    count,
    rows,
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
    UPDATES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid rows + 1: the last program makes every change of the table, the others first those that they read."""
    row = tl.program_id(0)
    u = tl.arange(0, UPDATES)
    cell = tl.load(cells + u, u < count, -1)
    page = tl.load(pages + u, u < count, 0)
    if row == rows:
        tl.store(table + cell, page, cell >= 0)
    else:
        slot = tl.load(slots + row)
        start = tl.load(starts + row)
        first = slot * width
        tl.store(table + cell, page, (cell >= first) & (cell < first + width))
        tl.debug_barrier()
        source = table + slot.to(tl.int64) * width
        target = row_table + row.to(tl.int64) * width
        place = tl.load(source + start // page_size) * page_size + start % page_size
        tl.store(tokens + row, tl.load(last_token + slot))
        tl.store(positions + row, start)
        tl.store(kv_lens + row, start + 1)
        tl.store(kv_slots + row, tl.where(slot == padding_slot, -1, place))
        # Only the pages that the row has are copied: what lies behind them is never read.
        used = start // page_size + 1
        for begin in range(0, used, BLOCK):
            at = begin + tl.arange(0, BLOCK)
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
    updates, rows = update_cells.shape[0], slots.shape[0]
    _prepare[(rows + 1,)](
        update_cells,
        update_pages,
        updates,
        rows,
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
        UPDATES=triton.next_power_of_2(max(1, updates)),
        BLOCK=_PAGES,
    )


def feed(tokens: torch.Tensor, slots: torch.Tensor, last_token: torch.Tensor, out: torch.Tensor) -> None:
    """As `reference.feed`."""
    count = tokens.shape[0]
    _feed[(triton.cdiv(count, _ROWS),)](tokens, slots, last_token, out, count, BLOCK=_ROWS)
