"""The disk tier never takes more room than it was given: what is not used any more is removed."""

from __future__ import annotations

import numpy as np

from tsd.scheduler.core import Scheduler
from tsd.scheduler.types import ExecutionPlan, MoveDone, RequestSpec, SchedulerConfig, StepLanded

PAGE = 4


def tiered(blocks: int) -> Scheduler:
    return Scheduler(
        SchedulerConfig(
            max_num_seqs=1,
            max_model_len=40,
            num_pages=10,
            page_size=PAGE,
            host_pages=10,
            disk_blocks=blocks,
            disk_threshold_pages=1,
            hash_secret=b"same",
        )
    )


def settle(scheduler: Scheduler, fail: str = "") -> list[tuple[str, list[bytes]]]:
    """Runs everything to its end; the moves on the way, of which those of kind `fail` fail."""
    moves: list[tuple[str, list[bytes]]] = []
    while scheduler.has_work:
        plan: ExecutionPlan | None = scheduler.next_plan(0.0)
        if plan is None:
            break
        for move in plan.moves:
            moves.append((move.kind, move.keys))
        scheduler.advance(StepLanded(plan.step, np.full(plan.num_rows, 3, np.int32)), 0.0)
        for move in plan.moves:
            scheduler.advance(MoveDone(move.move_id, move.kind != fail), 0.0)
        scheduler.integrity()
    return moves


def keys_of(moves: list[tuple[str, list[bytes]]], kind: str) -> list[bytes]:
    return [key for found, keys in moves if found == kind for key in keys]


def test_blocks_of_a_larger_disk_are_removed_at_the_start() -> None:
    scheduler = tiered(3)
    keys = [bytes([i]) * 16 for i in range(5)]
    assert scheduler.adopt_disk(keys) == 3
    assert settle(scheduler) == [("discard", keys[3:])]
    assert scheduler.snapshot()["tiers"]["disk"]["free"] == 0
    unlimited = tiered(5)
    assert unlimited.adopt_disk(keys) == 5 and not settle(unlimited)


def test_a_block_that_cannot_be_read_is_removed_and_its_request_goes_on() -> None:
    first = tiered(8)
    first.submit(RequestSpec(1, np.arange(17, dtype=np.int32), 1), 0.0)
    stored = keys_of(settle(first), "store")
    assert len(stored) == 4
    second = tiered(8)
    second.adopt_disk(stored)
    second.submit(RequestSpec(1, np.arange(17, dtype=np.int32), 1), 0.0)
    moves = settle(second, fail="prefetch")
    assert keys_of(moves, "prefetch") == stored
    assert keys_of(moves, "discard") == stored[:1]
    assert [end.reason for end in second.take_finished()] == ["length"]
