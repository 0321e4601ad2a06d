"""What operators see of requests, pages and prefixes, against what the scheduler was told."""

from __future__ import annotations

import numpy as np
import pytest

from tsd.scheduler.core import Scheduler
from tsd.scheduler.types import RequestSpec, SchedulerConfig, StepLanded
from tsd.scheduler.view import hot_prefixes, page_detail, request_rows


def busy() -> Scheduler:
    """Three requests that share two pages of eight tokens, run some steps, and one that waits for a slot."""
    scheduler = Scheduler(
        SchedulerConfig(
            max_num_seqs=3, max_model_len=64, num_pages=32, page_size=8, chunked_prefill_size=64, max_in_flight=1
        )
    )
    shared = list(range(16))
    for number in range(4):
        prompt = np.asarray([*shared, 100 + number, 200 + number], np.int32)
        scheduler.submit(
            RequestSpec(request_id=number, prompt=prompt, max_tokens=20, priority=0, payload=f"p{number}"),
            now=float(number),
        )
        for _ in range(2):
            plan = scheduler.next_plan(10.0)
            if plan is not None:
                scheduler.advance(StepLanded(plan.step, np.full(plan.num_rows, 7, np.int32)), 10.0)
    return scheduler


def test_rows_say_what_was_submitted_and_done():
    scheduler = busy()
    rows = {row[0]: row for row in request_rows(scheduler, 20.0)}
    assert set(rows) == {0, 1, 2, 3}
    assert [rows[n][2] for n in range(4)] == [20.0, 19.0, 18.0, 17.0]
    assert all(row[3] == 18 for row in rows.values())
    assert rows[0][1] == "decoding" and rows[3][1] == "submitted"
    assert rows[0][4] == 0 and rows[1][4] == rows[2][4] == 16
    assert rows[0][5] > rows[2][5] > rows[3][5] == 0
    assert rows[0][6] == pytest.approx((rows[0][5] - 1) / 10.0)
    assert rows[2][9] == "p2"
    assert len(request_rows(scheduler, 20.0, 2)) == 2
    scheduler.integrity()


def test_the_shared_prefix_is_the_hot_one():
    found = hot_prefixes(busy())
    assert len(found) == 1
    assert found[0]["tokens"] == 16 and found[0]["refs"] == 3 and found[0]["tier"] == "device"
    assert len(bytes.fromhex(found[0]["key"])) == 16


def test_every_page_has_the_owners_that_the_counts_say():
    scheduler = busy()
    pages = [page for number in range(32) for page in page_detail(scheduler, number)["pages"]]
    assert [page["page"] for page in pages] == list(range(32))
    shared = [page for page in pages if page["state"] == "shared"]
    assert len(shared) == 2 and all(sorted(page["owners"]) == [0, 1, 2] and page["key"] for page in shared)
    assert all(len(page["owners"]) == 1 for page in pages if page["state"] == "active")
    assert all(page["owners"] == [] for page in pages if page["state"] in ("free", "cached"))
    states = [page["state"] for page in pages]
    counts = scheduler.snapshot()["tiers"]["device"]
    assert {name: states.count(name) for name in set(states)} == {n: c for n, c in counts.items() if c and n != "total"}


@pytest.mark.parametrize("number", [-1, 32, 10**6])
def test_a_bin_that_does_not_exist(number):
    with pytest.raises(ValueError, match="no bin"):
        page_detail(busy(), number)


def test_an_idle_scheduler_has_nothing_to_show():
    scheduler = Scheduler(SchedulerConfig(max_num_seqs=1, max_model_len=64, num_pages=16, page_size=8))
    assert request_rows(scheduler, 0.0) == hot_prefixes(scheduler) == []
