"""The exchange between host and device: blocks written in C, taken and answered by the step's kernels.

Run on a GPU, and without one on CPU tensors under TRITON_INTERPRET=1; each case with the Triton kernels and the plain
torch operations. What is expected is worked out in numpy.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from tsd.engine.executor.blocks import OutOfStep, StepBlocks
from tsd.kernels.sampling.types import greedy_state
from tsd.kernels.step import reference
from tsd.kernels.step import triton as kernels
from tsd.kernels.step.exchange import CLOCK_TICKET, DEPTH, UNWRITTEN, UPDATES, Feed, make_exchange
from tsd.kernels.triton import sampling

SLOTS, PAGES, PAGE = 7, 40, 4
MOST = 8
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def settle() -> None:
    """The host sees what the device wrote once that has ended."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


class Side:
    """A host and its device; `ops` has the device's kernels."""

    def __init__(self, ops) -> None:
        self.ops = ops
        self.exchange = make_exchange(MOST, DEVICE)
        self.blocks = StepBlocks(self.exchange.blocks.numpy(), self.exchange.answers.numpy(), MOST, PAGES)
        self.last_token = torch.arange(100, 100 + SLOTS + 1, dtype=torch.int32, device=DEVICE)
        self.page_table = torch.zeros((SLOTS + 1, PAGES), dtype=torch.int32, device=DEVICE)
        self.inputs = torch.full((4, MOST), -7, dtype=torch.int32, device=DEVICE)
        self.row_table = torch.zeros((MOST, PAGES), dtype=torch.int32, device=DEVICE)

    def prepare(self, bucket: int) -> None:
        tokens, positions, kv_slots, kv_lens = (self.inputs[i, :bucket] for i in range(4))
        self.ops.prepare(
            self.exchange,
            self.last_token,
            self.page_table,
            tokens,
            positions,
            kv_slots,
            kv_lens,
            self.row_table[:bucket],
            PAGE,
        )
        settle()

    def feed(self, tokens: list[int], rows: int) -> None:
        slots = self.exchange.views()["slots"][:rows]
        self.ops.feed(torch.tensor(tokens, dtype=torch.int32, device=DEVICE), slots, self.last_token, self.exchange)
        settle()


def ints(values) -> np.ndarray:
    return np.array(values, np.int32)


@pytest.fixture(params=[kernels, reference], ids=["triton", "reference"])
def side(request) -> Side:
    return Side(request.param)


def test_steps_follow_the_host(side: Side) -> None:
    """Random steps: page changes, fewer rows than the graph has, none at all, more changes than one pass reads."""
    draw = random.Random(3)
    table = np.zeros((SLOTS, PAGES), np.int32)
    last = np.arange(100, 100 + SLOTS, dtype=np.int32)
    for step in range(3 * DEPTH + 2):
        rows = draw.randint(0, SLOTS)
        bucket = draw.choice([size for size in (0, 1, 2, 4, MOST) if size >= rows])
        slots = draw.sample(range(SLOTS), rows)
        starts = [draw.randrange(PAGES * PAGE) for _ in slots]
        cells = draw.sample(range(SLOTS * PAGES), draw.choice((0, 0, 1, 5, 33, 100)))
        pages = [draw.randrange(1, 1000) for _ in cells]
        for cell, page in zip(cells, pages, strict=True):
            table[cell // PAGES, cell % PAGES] = page
        side.blocks.stage(ints(slots), ints(starts))
        if cells:
            side.blocks.stage_pages(ints([c // PAGES for c in cells]), ints([c % PAGES for c in cells]), ints(pages))
        serial = side.blocks.send()
        assert serial == step + 1
        side.prepare(bucket)
        assert np.array_equal(side.page_table[:SLOTS].cpu(), table)
        tokens, positions, kv_slots, kv_lens = (side.inputs[i, :bucket].tolist() for i in range(4))
        padding = bucket - rows
        assert tokens == [*last[slots].tolist(), *[100 + SLOTS] * padding]
        assert positions == [*starts, *[0] * padding]
        assert kv_lens == [start + 1 for start in positions]
        wanted = [table[s, p // PAGE] * PAGE + p % PAGE for s, p in zip(slots, starts, strict=True)]
        assert kv_slots == [*wanted, *[-1] * padding]
        for row, (slot, start) in enumerate(zip(slots, starts, strict=True)):
            used = start // PAGE + 1
            assert side.row_table[row, :used].tolist() == table[slot, :used].tolist()
        assert side.exchange.clock[CLOCK_TICKET] == 0
        drawn = [draw.randrange(5000) for _ in slots]
        side.feed(drawn, rows)
        last[slots] = drawn
        assert side.blocks.read(serial, rows) == 0
        assert side.blocks.tokens(serial, rows).tolist() == drawn
        assert side.last_token[:SLOTS].tolist() == last.tolist()


def test_sampling_parameters_arrive(side: Side) -> None:
    generator = np.random.default_rng(1)
    temperature, top_p, min_p = generator.random((3, SLOTS), np.float32)
    top_k = generator.integers(0, 99, SLOTS, np.int32)
    seeds = generator.integers(-(2**63), 2**63, SLOTS, np.int64)
    num_prompt = generator.integers(1, 20, SLOTS, np.int32)
    slots, starts = ints([5, 0, 3]), ints([20, 31, 44])
    side.blocks.stage(slots, starts)
    side.blocks.stage_sampling(temperature, top_k, top_p, min_p, seeds, num_prompt)
    side.blocks.send()
    side.prepare(4)
    found = {name: field[:3].cpu().numpy() for name, field in side.exchange.views().items()}
    wanted = {
        "slots": slots,
        "starts": starts,
        "temperature": temperature[slots],
        "top_k": top_k[slots],
        "top_p": top_p[slots],
        "min_p": min_p[slots],
        "seeds": seeds[slots],
        "token_index": starts.astype(np.int64) + 1 - num_prompt[slots],
    }
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        assert np.array_equal(found[name], values), name
    assert side.exchange.views()["slots"][3] == SLOTS  # the graph's fourth row is padding


def step(side: Side, tokens: list[int], launches: int = 1) -> int:
    """A step of as many rows, whose graph is launched so often; its serial number."""
    rows = len(tokens)
    side.blocks.stage(ints(range(rows)), ints([3] * rows))
    serial = side.blocks.send()
    for _ in range(launches):
        side.prepare(rows)
        side.feed(tokens, rows)
    return serial


def test_a_lost_launch_is_seen(side: Side) -> None:
    assert side.blocks.read(step(side, [1, 2]), 2) == 0
    lost = step(side, [3, 4], launches=0)
    after = step(side, [5, 6])
    # The device took the block that was passed over, and answered with its number.
    with pytest.raises(OutOfStep, match=f"block {after}"):
        side.blocks.read(after, 2)
    assert side.blocks.read(lost, 2) == 0
    with pytest.raises(OutOfStep, match="the answer of block 0 lies where that of block 3 was due"):
        side.blocks.read(after, 2)


def test_a_launch_too_many_changes_nothing(side: Side) -> None:
    """It computes padding rows, and what it draws goes to the spare answer."""
    serial = step(side, [1, 2])
    before = side.last_token[:SLOTS].clone()
    side.prepare(2)
    assert side.inputs[2, :2].tolist() == [-1, -1]
    assert side.exchange.views()["slots"][:2].tolist() == [SLOTS, SLOTS]
    side.feed([8, 9], 2)
    assert torch.equal(side.last_token[:SLOTS], before)
    assert side.blocks.read(serial, 2) == 0
    assert side.blocks.tokens(serial, 2).tolist() == [1, 2]
    serial = step(side, [3, 4], launches=2)
    assert side.blocks.read(serial, 2) == 0
    assert side.blocks.tokens(serial, 2).tolist() == [3, 4]


def test_launches_before_the_first_block_touch_nothing(side: Side) -> None:
    """As in a warm-up."""
    for bucket in (0, 4, MOST):
        side.prepare(bucket)
        side.feed([7] * bucket, bucket)
    assert not side.page_table[:SLOTS].any()
    assert side.last_token[:SLOTS].tolist() == list(range(100, 100 + SLOTS))
    assert side.blocks.read(step(side, [1]), 1) == 0


def test_a_token_that_was_not_drawn_is_missed(side: Side) -> None:
    side.blocks.stage(ints([0, 1]), ints([3, 3]))
    serial = side.blocks.send()
    side.prepare(2)
    side.feed([5], 1)
    assert side.blocks.tokens(serial, 2).tolist() == [5, UNWRITTEN]
    with pytest.raises(OutOfStep, match="no token for row 1 of 2"):
        side.blocks.read(serial, 2)


def test_rows_without_a_token_are_counted(side: Side) -> None:
    serial = step(side, [-1, 4, -1])
    assert side.blocks.read(serial, 3) == 2
    assert side.last_token[:3].tolist() == [0, 4, 0]


def test_no_block_is_written_before_its_turn(side: Side) -> None:
    serials = [step(side, [1]) for _ in range(DEPTH)]
    with pytest.raises(OutOfStep, match="block 5 is asked for"):
        side.blocks.stage(ints([0]), ints([3]))
    with pytest.raises(OutOfStep, match="block 5 is asked for"):
        side.blocks.send()
    with pytest.raises(OutOfStep):
        side.blocks.read(serials[1], 1)  # answers are read in order
    for serial in serials:
        assert side.blocks.read(serial, 1) == 0
    assert side.blocks.read(step(side, [1]), 1) == 0


def test_serial_numbers_wrap(side: Side) -> None:
    """After 2**32 steps, and the device's signed count after 2**31."""
    for first in (2**31 - 3, 2**32 - 3):
        side.blocks.set_serial(first)
        side.exchange.clock[0] = first - 2**32 if first >= 2**31 else first
        for i in range(6):
            serial = step(side, [i, i + 1])
            assert serial == (first + 1 + i) % 2**32
            assert side.blocks.read(serial, 2) == 0
            assert side.blocks.tokens(serial, 2).tolist() == [i, i + 1]


def test_what_does_not_fit_is_refused(side: Side) -> None:
    many = ints([0] * (UPDATES + 1))
    with pytest.raises(ValueError, match="changes"):
        side.blocks.stage_pages(many, many, many)
    with pytest.raises(ValueError, match="rows"):
        side.blocks.stage(ints([0] * (MOST + 1)), ints([0] * (MOST + 1)))
    with pytest.raises(TypeError):
        side.blocks.stage(np.zeros(2, np.int64), ints([0, 0]))
    with pytest.raises(TypeError):
        side.blocks.stage(ints([0, 1, 2, 3])[::2], ints([0, 0]))


def test_the_greedy_draw_answers() -> None:
    side = Side(kernels)
    logits = torch.randn(3, 5000, generator=torch.Generator().manual_seed(2))
    logits[1, 7] = float("nan")
    side.blocks.stage(ints([4, 2, 0]), ints([1, 2, 3]))
    serial = side.blocks.send()
    side.prepare(4)
    slots = side.exchange.views()["slots"][:4]
    padded = torch.cat((logits, torch.zeros(1, 5000))).to(DEVICE)
    state = greedy_state(4, DEVICE)
    sampled = sampling.sample(padded, state, feed=Feed(side.last_token, slots, side.exchange))
    settle()
    best = logits.argmax(dim=1).tolist()
    assert side.blocks.read(serial, 3) == 1
    assert side.blocks.tokens(serial, 3).tolist() == [best[0], -1, best[2]]
    assert sampled.tokens[:3].tolist() == [best[0], -1, best[2]]
    assert side.last_token[[4, 2, 0]].tolist() == [best[0], 0, best[2]]
    assert side.last_token[SLOTS] == 0  # the padding row's
