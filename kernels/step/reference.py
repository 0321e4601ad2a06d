"""The bookkeeping of a step in plain torch, any device.

Slot state on the device: `last_token` int32 [R + 1] and `page_table` int32 [R + 1, P]; slot R is the padding slot,
whose row computes but writes to no page. `exchange.py` says what goes to and fro.
"""

from __future__ import annotations

import torch

from tsd.kernels.step.exchange import (
    ANSWER,
    CLOCK_ANSWER,
    CLOCK_SERIAL,
    DEPTH,
    FIELDS,
    HEAD,
    PARAMETERS,
    UPDATES,
    Exchange,
)


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
    """Takes the next block if it is there: applies its page-table changes and fills the inputs of B decode rows.

    Rows past the block's, all of them where there is no block, are padding rows. Written: `tokens`, `positions`,
    `kv_slots` (-1 for padding), `kv_lens` [B], `row_table` [B, P], the first B of each of the exchange's fields, its
    clock, and the serial number of the answer. B may be 0.
    """
    blocks, _, clock, fields = exchange
    count, most, padding = tokens.shape[0], exchange.most, page_table.shape[0] - 1
    device = last_token.device
    due = clock[CLOCK_SERIAL : CLOCK_SERIAL + 1] + 1
    turn = (due & (DEPTH - 1)).long()
    block = blocks.to(device, non_blocking=True).index_select(0, turn).squeeze(0)
    there = block[:1] == due
    sizes = torch.where(there, block[1:2], 0)
    rows, changes = sizes & 0xFFFF, (sizes >> 16) & 0x7FFF

    behind = HEAD + (2 + PARAMETERS) * most
    pairs = block[behind : behind + 2 * UPDATES].view(-1, 2)
    changed = torch.arange(len(pairs), device=device) < changes
    # What is no change is written to the padding slot's first cell, as a zero.
    cells = torch.where(changed, pairs[:, 0], padding * page_table.shape[1])
    page_table.view(-1)[cells.long()] = torch.where(changed, pairs[:, 1], 0)

    records = block[HEAD : HEAD + 2 * most].view(most, 2)[:count]
    asked = block[HEAD + 2 * most : behind].view(most, PARAMETERS)[:count]
    live = torch.arange(count, device=device) < rows
    slots = torch.where(live, records[:, 0], padding)
    starts = torch.where(live, records[:, 1], 0)
    narrow = fields[: len(FIELDS) * most].view(len(FIELDS), most)
    narrow[0, :count], narrow[1, :count] = slots, starts
    narrow[2:, :count] = asked[:, : len(FIELDS) - 2].T
    wide = fields[len(FIELDS) * most :].view(-1, most, 2)
    for place in range(len(wide)):
        first = len(FIELDS) - 2 + 2 * place
        wide[place, :count] = asked[:, first : first + 2]

    index = slots.long()
    row_table.copy_(page_table[index])
    tokens.copy_(last_token[index])
    positions.copy_(starts)
    kv_lens.copy_(starts + 1)
    page = row_table.gather(1, (starts // page_size).long().unsqueeze(1)).squeeze(1)
    kv_slots.copy_(torch.where(live & (slots != padding), page * page_size + starts % page_size, -1))

    clock[CLOCK_SERIAL : CLOCK_SERIAL + 1] = torch.where(there, due, due - 1)
    clock[CLOCK_ANSWER : CLOCK_ANSWER + 1] = torch.where(there, turn.int(), DEPTH)
    _answer(exchange, 0, due)


def feed(tokens: torch.Tensor, slots: torch.Tensor, last_token: torch.Tensor, exchange: Exchange) -> None:
    """The next step's input: last_token[slots[i]] = tokens[i], and tokens[i] in the step's answer for the host; [B].

    A row that drew nothing names the padding slot.
    """
    last_token[slots.long()] = tokens.clamp_min(0)
    _answer(exchange, ANSWER, tokens)


def _answer(exchange: Exchange, place: int, words: torch.Tensor) -> None:
    """Writes into the answer that the clock names. On a GPU all answers make the way: copies have fixed addresses."""
    answers, clock = exchange.answers, exchange.clock
    there = answers.to(clock.device, non_blocking=True)
    which = clock[CLOCK_ANSWER : CLOCK_ANSWER + 1].long()
    row = there.index_select(0, which)
    row[0, place : place + len(words)] = words
    there.index_copy_(0, which, row)
    answers.copy_(there, non_blocking=True)
