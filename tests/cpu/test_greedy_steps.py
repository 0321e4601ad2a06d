"""The step that runs most often, from the plan to the driver, with the driver's calls noted instead of made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tsd.engine.executor.blocks import all_set, write_cells  # noqa: E402 (after what may be missing)
from tsd.engine.executor.greedy import GreedySteps  # noqa: E402
from tsd.engine.executor.rows import Rows  # noqa: E402
from tsd.engine.executor.staging import Staging  # noqa: E402
from tsd.engine.executor.wake import Landing  # noqa: E402
from tsd.engine.protocol import SamplingParams, Submit  # noqa: E402
from tsd.kernels.step.exchange import HEAD, PARAMETERS, UPDATES  # noqa: E402
from tsd.scheduler.types import ExecutionPlan, Move  # noqa: E402

SLOTS, PAGE, PAGES = 6, 4, 10


class NotedCalls(Landing):
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def launch(self, graph: int) -> int:
        self.calls.append(graph)
        return 0

    def signal(self) -> int:
        self.calls.append("signal")
        return 0


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def decode_plan(
    slots: np.ndarray, starts: np.ndarray, changes: tuple[np.ndarray, ...] = (ints(), ints(), ints())
) -> Any:
    rows = len(slots)
    return ExecutionPlan(
        step=0,
        num_rows=rows,
        num_decode=rows,
        num_tokens=rows,
        slots=slots,
        starts=starts,
        counts=np.ones(rows, np.int32),
        samples=np.ones(rows, np.uint8),
        prefill_tokens=ints(),
        admitted=[],
        table_slots=changes[0],
        table_index=changes[1],
        table_pages=changes[2],
        released=ints(),
        zero_pages=ints(),
    )


class Host:
    def __init__(self) -> None:
        self.rows = Rows(SLOTS, PAGE * PAGES, PAGE, 100)
        for slot in range(SLOTS):
            self.admit(slot, SamplingParams(temperature=0.0))
        self.landing = NotedCalls()
        self.staging = Staging(SLOTS, PAGES, torch.device("cpu"))
        self.greedy = GreedySteps(self.staging.blocks, self.landing, self.rows.sampling.likeliest, self.rows.page_table)
        self.greedy.serve({1: 100, 2: 200, 4: 400})

    def admit(self, slot: int, params: SamplingParams, **more: Any) -> None:
        submit = Submit(slot, ints(1).tobytes(), 9, params, **more)
        self.rows.sampling.admit(slot, submit, 1, ints(1), 1)

    def block(self, serial: int) -> np.ndarray:
        return self.staging.exchange.blocks.numpy()[serial % 4]


@pytest.fixture
def host() -> Host:
    return Host()


def test_a_greedy_step(host: Host) -> None:
    """Its block, word by word; the smallest graph that holds it; the host's own page table."""
    changes = (ints(5, 0), ints(9, 3), ints(77, 88))
    serial = host.greedy.launch(decode_plan(ints(5, 0, 2), ints(38, 12, 3), changes))
    assert serial == 1
    assert host.landing.calls == [400, "signal"]
    assert host.greedy.padded_rows == 1
    block = host.block(serial)
    assert block[:2].tolist() == [1, 3 | 2 << 16]
    assert block[HEAD : HEAD + 6].tolist() == [5, 38, 0, 12, 2, 3]
    behind = HEAD + (2 + PARAMETERS) * SLOTS
    assert block[behind : behind + 4].tolist() == [5 * PAGES + 9, 77, 3, 88]
    assert host.rows.page_table[5, 9] == 77 and host.rows.page_table[0, 3] == 88
    assert host.greedy.launch(decode_plan(ints(1), ints(2))) == 2
    assert host.landing.calls[2:] == [100, "signal"]
    assert host.block(2)[:4].tolist() == [2, 1, 1, 2]


def refuses(host: Host, plan: ExecutionPlan) -> None:
    before = host.staging.exchange.blocks.numpy().copy()
    assert host.greedy.launch(plan) == -1
    assert host.landing.calls == []
    assert host.staging.blocks.serial == 0
    assert np.array_equal(host.staging.exchange.blocks.numpy(), before)
    assert not host.rows.page_table.any()


def test_other_steps_are_left_alone(host: Host) -> None:
    plan = decode_plan(ints(0, 1), ints(3, 3), (ints(1), ints(1), ints(9)))
    many = ints(*[0] * (UPDATES + 1))
    refuses(host, replace(plan, num_rows=0, num_decode=0))
    refuses(host, replace(plan, num_decode=1))
    refuses(host, replace(plan, zero_pages=ints(4)))
    refuses(host, replace(plan, admitted=[object()]))  # type: ignore[list-item]
    refuses(host, replace(plan, moves=[Move(1, "write_back", ints(1), ints(1), [])]))
    refuses(host, replace(plan, table_slots=many, table_index=many, table_pages=many))
    refuses(host, decode_plan(ints(*range(5)), ints(*[3] * 5)))  # more rows than any graph has
    assert host.greedy.launch(plan) == 1


@pytest.mark.parametrize(
    "params, more",
    [
        (SamplingParams(temperature=0.1), {}),
        (SamplingParams(temperature=0.0, logprobs=0), {}),
        (SamplingParams(temperature=0.0, frequency_penalty=0.5), {}),
        (SamplingParams(temperature=0.0, logit_bias={3: 1.0}), {}),
        (SamplingParams(temperature=0.0), {"min_tokens": 3, "stop_token_ids": (5,)}),
    ],
)
def test_a_row_that_asks_for_more(host: Host, params: SamplingParams, more: dict[str, Any]) -> None:
    host.admit(1, params, **more)
    refuses(host, decode_plan(ints(0, 1), ints(3, 3)))
    assert not host.rows.sampling.is_greedy(ints(0, 1))
    assert host.greedy.launch(decode_plan(ints(0, 2), ints(3, 3))) == 1
    host.admit(1, SamplingParams(temperature=0.0))  # the slot's next owner
    assert host.greedy.launch(decode_plan(ints(0, 1), ints(3, 3))) == 2


def test_a_row_with_a_grammar(host: Host) -> None:
    host.rows.sampling.constrain(1, object())  # type: ignore[arg-type]
    refuses(host, decode_plan(ints(1), ints(3)))


def test_a_driver_that_fails_is_not_hidden(host: Host) -> None:
    class Failing(NotedCalls):
        def launch(self, graph: int) -> int:
            raise RuntimeError("cuGraphLaunch failed with CUDA error 700")

    greedy = GreedySteps(host.staging.blocks, Failing(), host.rows.sampling.likeliest, host.rows.page_table)
    greedy.serve({1: 1})
    with pytest.raises(RuntimeError, match="700"):
        greedy.launch(decode_plan(ints(1), ints(3)))


def test_small_helpers_equal_numpy() -> None:
    draw = np.random.default_rng(4)
    flags = draw.integers(0, 2, 50).astype(np.uint8)
    for size in (0, 1, 3, 20):
        slots = draw.integers(0, 50, size, np.int32)
        assert all_set(flags, slots) == bool(flags[slots].all())
    mine = draw.integers(0, 9, (50, 7), np.int32)
    theirs = mine.copy()
    cells = draw.permutation(350)[:60]
    slots, index = (cells // 7).astype(np.int32), (cells % 7).astype(np.int32)
    pages = draw.integers(0, 1000, 60, np.int32)
    write_cells(mine, slots, index, pages)
    theirs[slots, index] = pages
    assert np.array_equal(mine, theirs)
