"""The bookkeeping of a step, one Triton launch before it and one after. `reference.py` says what they do."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

from tsd.kernels.step.exchange import ANSWER, BEGAN, DEPTH, ENDED, FIELDS, HEAD, PARAMETERS, Exchange
from tsd.kernels.triton.target import has_timer

_PAGES = 128
_CHANGES = 32
_ROWS = 256
_NARROW = len(FIELDS) - 2
"""32-bit parameters of a row."""


_INPUTS = ("tokens", "positions", "kv_slots", "kv_lens", "row_table")


@triton.jit(do_not_specialize=["padding_slot", "width", "most"], do_not_specialize_on_alignment=_INPUTS)
def _prepare(
    blocks,
    answers,
    clock,
    fields,
    last_token,
    table,
    tokens,
    positions,
    kv_slots,
    kv_lens,
    row_table,
    padding_slot,
    width,
    most,
    page_size,
    block_words,
    answer_words,
    DEPTH: tl.constexpr,
    HEAD: tl.constexpr,
    PARAMETERS: tl.constexpr,
    NARROW: tl.constexpr,
    CHANGES: tl.constexpr,
    PAGES: tl.constexpr,
    BEGAN: tl.constexpr,
    TIMED: tl.constexpr,
):
    """Grid rows + 1, one warp each: the last makes every change of the table, the others first those that they read.

    A program's own row comes with the head in one trip to the host; a second one is made where pages changed, or where
    the rows are sampled.
    """
    row = tl.program_id(0)
    last = tl.num_programs(0) - 1
    began = tl.zeros([], tl.int64)
    if TIMED:
        began = globaltimer()
    due = tl.load(clock) + 1
    turn = due & (DEPTH - 1)
    block = blocks + turn * block_words
    head = tl.load(block.to(tl.pointer_type(tl.int64)), cache_modifier=".cv")
    # The last program reads what it does not use: the words behind the rows, which are there.
    pair = tl.load((block + HEAD).to(tl.pointer_type(tl.int64)) + row, cache_modifier=".cv")
    there = head.to(tl.int32) == due
    rows = tl.where(there, (head >> 32).to(tl.int32) & 0xFFFF, 0)
    changes = tl.where(there, (head >> 48).to(tl.int32) & 0x7FFF, 0)
    live = (row < rows) & (row < last)
    slot = tl.where(live, pair.to(tl.int32), padding_slot)
    start = tl.where(live, (pair >> 32).to(tl.int32), 0)
    lowest = tl.where(row == last, 0, slot * width)
    above = tl.where(row == last, 2147483647, slot * width + width)
    behind = (block + HEAD + (2 + PARAMETERS) * most).to(tl.pointer_type(tl.int64))
    for begin in range(0, changes, CHANGES):
        at = begin + tl.arange(0, CHANGES)
        change = tl.load(behind + at, mask=at < changes, other=-1, cache_modifier=".cv")
        cell = change.to(tl.int32)
        tl.store(table + cell, (change >> 32).to(tl.int32), mask=(at < changes) & (cell >= lowest) & (cell < above))
    tl.debug_barrier()
    if row < last:
        source = table + slot.to(tl.int64) * width
        target = row_table + row.to(tl.int64) * width
        place = tl.load(source + start // page_size) * page_size + start % page_size
        tl.store(tokens + row, tl.load(last_token + slot))
        tl.store(positions + row, start)
        tl.store(kv_lens + row, start + 1)
        tl.store(kv_slots + row, tl.where(slot == padding_slot, -1, place))
        tl.store(fields + row, slot)
        tl.store(fields + most + row, start)
        if live & (head < 0):
            # Field by field, as the kernels that draw want them; the 64-bit ones have their two words side by side.
            word = tl.arange(0, PARAMETERS)
            asked = tl.load(block + HEAD + 2 * most + row * PARAMETERS + word, cache_modifier=".cv")
            wide = word - NARROW
            narrow_place = (2 + word) * most + row
            wide_place = (2 + NARROW) * most + (wide // 2) * 2 * most + 2 * row + wide % 2
            tl.store(fields + tl.where(wide < 0, narrow_place, wide_place), asked)
        # Only the pages that the row has are copied: what lies behind them is never read.
        used = start // page_size + 1
        for begin in range(0, used, PAGES):
            at = begin + tl.arange(0, PAGES)
            tl.store(target + at, tl.load(source + at, at < used, 0), at < used)
    answer = answers + turn * answer_words
    if TIMED:
        tl.store(answer.to(tl.pointer_type(tl.int64)) + BEGAN, began, mask=(row == 0) & there)
    # The program that is done last turns the clock, when all have read it.
    tl.debug_barrier()
    if tl.atomic_add(clock + 2, 1, sem="acq_rel") == last:
        tl.store(clock + 2, 0)
        tl.store(clock + 1, tl.where(there, turn, DEPTH))
        if there:
            tl.store(clock, due)
            tl.store(answer, due)


@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["tokens", "slots"])
def _feed(
    tokens,
    slots,
    last_token,
    answers,
    clock,
    answer_words,
    count,
    ANSWER: tl.constexpr,
    ENDED: tl.constexpr,
    BLOCK: tl.constexpr,
    TIMED: tl.constexpr,
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    answer = answers + tl.load(clock + 1) * answer_words
    token = tl.load(tokens + at, mask, 0)
    tl.store(last_token + tl.load(slots + at, mask, 0), tl.maximum(token, 0), mask)
    tl.store(answer + ANSWER + at, token, mask)
    if TIMED:
        tl.store(answer.to(tl.pointer_type(tl.int64)) + ENDED, globaltimer(), mask=tl.program_id(0) == 0)


def prepare(
    exchange: Exchange,
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
    _prepare[(tokens.shape[0] + 1,)](
        exchange.blocks,
        exchange.answers,
        exchange.clock,
        exchange.fields,
        last_token,
        page_table,
        tokens,
        positions,
        kv_slots,
        kv_lens,
        row_table,
        page_table.shape[0] - 1,
        page_table.shape[1],
        exchange.most,
        page_size,
        exchange.blocks.shape[1],
        exchange.answers.shape[1],
        DEPTH=DEPTH,
        HEAD=HEAD,
        PARAMETERS=PARAMETERS,
        NARROW=_NARROW,
        CHANGES=_CHANGES,
        PAGES=_PAGES,
        BEGAN=BEGAN,
        TIMED=has_timer(last_token.device),
        num_warps=1,
    )


def feed(tokens: torch.Tensor, slots: torch.Tensor, last_token: torch.Tensor, exchange: Exchange) -> None:
    """As `reference.feed`, and the step's end by the device's clock. No rows at all: that alone."""
    count = tokens.shape[0]
    _feed[(max(1, triton.cdiv(count, _ROWS)),)](
        tokens,
        slots,
        last_token,
        exchange.answers,
        exchange.clock,
        exchange.answers.shape[1],
        count,
        ANSWER=ANSWER,
        ENDED=ENDED,
        BLOCK=_ROWS,
        TIMED=has_timer(last_token.device),
    )
