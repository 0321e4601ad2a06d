"""Pages kept out of use: nobody who runs loses one, everybody still ends, and they come back."""

from __future__ import annotations

import numpy as np
import pytest

from tsd.scheduler.core import Scheduler
from tsd.scheduler.types import RequestSpec, SchedulerConfig, StepLanded

PAGES, PAGE = 12, 4


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler(SchedulerConfig(max_num_seqs=4, max_model_len=40, num_pages=PAGES, page_size=PAGE))


def device(scheduler: Scheduler) -> dict[str, int]:
    found: dict[str, int] = scheduler.snapshot()["tiers"]["device"]
    return found


def submit(scheduler: Scheduler, request_id: int, length: int, max_tokens: int) -> None:
    prompt = np.arange(request_id * 100, request_id * 100 + length, dtype=np.int32)
    scheduler.submit(RequestSpec(request_id, prompt, max_tokens), 0.0)


def step(scheduler: Scheduler) -> bool:
    plan = scheduler.next_plan(0.0)
    if plan is None:
        return False
    scheduler.advance(StepLanded(plan.step, np.full(plan.num_rows, 3, np.int32)), 0.0)
    scheduler.integrity()
    return True


def settle(scheduler: Scheduler) -> list[int]:
    for _ in range(500):
        if not step(scheduler) and not scheduler.has_work:
            break
    return [end.request_id for end in scheduler.take_finished()]


def test_free_and_cached_pages_go_and_come_back(scheduler: Scheduler) -> None:
    submit(scheduler, 1, 17, 1)
    assert settle(scheduler) == [1]
    assert device(scheduler)["cached"] == 4
    scheduler.withhold(PAGES)
    submit(scheduler, 2, 1, 1)
    step(scheduler)
    # Request 2 needed one page and got it; all others are out of use, those of the cache too.
    assert device(scheduler)["cached"] == 0 and device(scheduler)["free"] <= 1
    scheduler.withhold(0)
    scheduler.integrity()
    settle(scheduler)
    assert device(scheduler)["free"] == PAGES


def test_a_running_request_keeps_what_it_has(scheduler: Scheduler) -> None:
    submit(scheduler, 1, 16, 10)
    step(scheduler)
    scheduler.withhold(PAGES)
    for _ in range(3):
        step(scheduler)
    assert scheduler.counters["retractions"] == 0 and scheduler.state_of(1) == "decoding"


@pytest.mark.parametrize("withheld", [1, 5, 11, PAGES])
def test_everybody_ends_in_order_of_arrival_whatever_is_withheld(scheduler: Scheduler, withheld: int) -> None:
    scheduler.withhold(withheld)
    for request_id in (1, 2, 3):
        submit(scheduler, request_id, 20, 15)
    ended = settle(scheduler)
    assert sorted(ended) == [1, 2, 3] and ended[0] == 1
    assert scheduler.counters["generation_tokens"] == 45


def test_more_pages_than_there_are_is_refused(scheduler: Scheduler) -> None:
    for wrong in ((PAGES + 1, 0), (-1, 0), (0, 1)):
        with pytest.raises(ValueError, match="pages"):
            scheduler.withhold(*wrong)
    assert device(scheduler)["free"] == PAGES


def test_the_host_tier_shrinks_too() -> None:
    one = Scheduler(SchedulerConfig(max_num_seqs=1, max_model_len=40, num_pages=PAGES, page_size=PAGE, host_pages=6))
    one.withhold(0, 6)
    submit(one, 1, 20, 1)
    step(one)
    host = one.snapshot()["tiers"]["host"]
    assert host["free"] == 0
    one.withhold(0, 0)
    one.integrity()
    assert one.snapshot()["tiers"]["host"]["free"] + one.snapshot()["tiers"]["host"]["in_flight"] == 6
