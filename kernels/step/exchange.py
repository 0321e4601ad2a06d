"""What host and device tell each other about a step, without a copy: blocks that the device reads, answers it writes.

Both lie in pinned host memory that kernels reach by its address. A graph records addresses once, and there are DEPTH
blocks, so the device finds its block by a count that it keeps itself (`clock`), and each block says which one it is:

    host     writes block s % DEPTH, its head (with the serial number s) last; then launches the step
    device   `step.prepare` takes block c + 1, where c is the last it took, if the block there bears that number
             (clock: c + 1), and answers with the number in answer s % DEPTH; otherwise it takes nothing, computes
             padding rows, and what is drawn goes to the spare answer DEPTH
             the draw writes the step's tokens to the answer that `clock` names
    host     sees the step's end, and that the answer bears the number s and a token for each row

So no block is taken twice; a launch too many changes nothing, and one that was lost is seen at the next answer. Serial
numbers have 32 bits and may wrap.

Memory order. The host's stores come before the launch that reads them: the driver rings the device's doorbell with a
store of its own, after a fence, and x86 keeps stores in order. The device reads with `ld.cv`, which drops what a cache
may hold of host memory. What a kernel wrote is visible to the host once the stream has got past that kernel and the
host was told so (here by a host function behind an event). Neither side writes what the other may still read: a block
is written again when the step DEPTH before it has been answered.

Layout, in 32-bit words. Block: head (serial, rows | changes << 16 | SAMPLED if the rows' parameters are there); rows,
(slot, start) each; parameters, PARAMETERS words a row: temperature, top_k, top_p, min_p, seed (2), token index (2);
page-table changes, (cell, page) each. A small step needs no more than the first cache line. Answer: serial, 0, began
(2), ended (2) in nanoseconds of the device's clock, tokens from word ANSWER.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

DEPTH = 4
"""A power of two: two steps on their way, one being written, one to spare."""
HEAD = 2
PARAMETERS = 8
SAMPLED = 1 << 31
"""In the head's second word."""
ANSWER = 16
UPDATES = 1024
"""Page-table changes that one block can carry."""
UNWRITTEN = -2
"""What the host puts where a token is to come; -1 is a row whose logits were not finite."""
CLOCK_SERIAL, CLOCK_ANSWER, CLOCK_TICKET = 0, 1, 2
BEGAN, ENDED = 1, 2
"""Of an answer's 64-bit words."""

FIELDS = ("slots", "starts", "temperature", "top_k", "top_p", "min_p")
WIDE_FIELDS = ("seeds", "token_index")
FIELD_WORDS = len(FIELDS) + 2 * len(WIDE_FIELDS)


class Exchange(NamedTuple):
    """Int32 tensors; M is the most rows of a step (even)."""

    blocks: torch.Tensor
    """[DEPTH, block_words(M)], pinned."""
    answers: torch.Tensor
    """[DEPTH + 1, ANSWER + M, and to a multiple of 16], pinned."""
    clock: torch.Tensor
    """[16] on the device: serial of the last block taken, its answer, programs of `prepare` that are done."""
    fields: torch.Tensor
    """[FIELD_WORDS * M] on the device: the rows of the block taken, field by field."""

    @property
    def most(self) -> int:
        return self.fields.shape[0] // FIELD_WORDS

    def views(self) -> dict[str, torch.Tensor]:
        """`fields` by name, [M] each."""
        most, found, offset = self.most, {}, 0
        for name in FIELDS:
            words = self.fields[offset : offset + most]
            found[name] = words if name in ("slots", "starts", "top_k") else words.view(torch.float32)
            offset += most
        for name in WIDE_FIELDS:
            found[name] = self.fields[offset : offset + 2 * most].view(torch.int64)
            offset += 2 * most
        return found


class Feed(NamedTuple):
    """Where drawn tokens go, beside the caller: row i's to last_token[slots[i]] and to the step's answer."""

    last_token: torch.Tensor
    slots: torch.Tensor
    exchange: Exchange


def block_words(most: int) -> int:
    """Of a block for as many rows; a multiple of 16."""
    return -(-(HEAD + (2 + PARAMETERS) * most + 2 * UPDATES) // 16) * 16


def make_exchange(most: int, device: torch.device) -> Exchange:
    """All zero: no block has been sent or taken. `most` must be even and at most 65,534."""
    if most % 2 or not 0 < most < 65_536:
        raise ValueError(f"{most} rows: an even number up to 65,534 is needed")
    pin = device.type == "cuda"
    answer = -(-(ANSWER + most) // 16) * 16
    return Exchange(
        torch.zeros((DEPTH, block_words(most)), dtype=torch.int32, pin_memory=pin),
        torch.zeros((DEPTH + 1, answer), dtype=torch.int32, pin_memory=pin),
        torch.zeros(16, dtype=torch.int32, device=device),
        torch.zeros(FIELD_WORDS * most, dtype=torch.int32, device=device),
    )
