"""Faults that users of other engines reported of schedulers and caches, one test a row."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from support.scheduling import Executor, drive, oracle

from tsd.scheduler.core import Scheduler
from tsd.scheduler.requests import IllegalTransition
from tsd.scheduler.types import Refused, RequestSpec, SchedulerConfig, StepLanded

SMALL = SchedulerConfig(max_num_seqs=8, max_model_len=64, num_pages=32, page_size=4, chunked_prefill_size=32)


def ids(length: int, first: int = 0) -> np.ndarray:
    return np.arange(first, first + length, dtype=np.int32) % 50


def test_a_prompt_larger_than_the_pool_is_refused_and_blocks_nobody() -> None:
    config = replace(SMALL, max_model_len=1000)
    scheduler = Scheduler(config)
    with pytest.raises(Refused) as caught:
        scheduler.submit(RequestSpec(1, ids(128), 4), 0.0)
    assert caught.value.code == "never_fits" and "128" in caught.value.message
    outputs, reasons, _ = drive(config, [RequestSpec(2, ids(120), 4), RequestSpec(3, ids(8), 4)])
    assert reasons == {2: "length", 3: "length"} and len(outputs[2]) == 4


def test_a_preempted_request_readmits_over_its_own_cached_pages() -> None:
    config = replace(SMALL, num_pages=18, debug_retract_every=3)
    specs = [RequestSpec(i, ids(20, i), 30) for i in range(12)]
    outputs, _, scheduler = drive(config, specs)
    assert scheduler.counters["retractions"] > 20
    for one in specs:
        assert outputs[one.request_id] == oracle(one.prompt.tolist(), 30, (), 0, 64)


def test_tokens_and_rows_stay_one_to_one_when_retracting_every_second_step() -> None:
    config = replace(SMALL, max_num_seqs=32, num_pages=400, debug_retract_every=2, max_in_flight=2)
    scheduler = Scheduler(config)
    executor = Executor(config)
    for i in range(32):
        scheduler.submit(RequestSpec(i, ids(10, i), 20), 0.0)
    flying: list[StepLanded] = []
    received: Counter[int] = Counter()
    ends = {}
    for _ in range(20_000):
        plan = scheduler.next_plan(0.0)
        if plan is not None:
            flying.append(executor.launch(plan))
        if len(flying) == 2 or (plan is None and flying):
            step = flying.pop(0)
            outcome = scheduler.advance(step, 0.0)
            assert outcome is not None
            assert len(outcome.request_ids) == len(outcome.tokens) == len(outcome.rows)
            assert (outcome.tokens == step.tokens[outcome.rows]).all()
            received.update(outcome.request_ids.tolist())
        ends.update({end.request_id: end for end in scheduler.take_finished()})
        if not scheduler.has_work:
            break
    assert len(ends) == 32 and sum(end.retractions for end in ends.values()) > 16
    assert all(received[i] == ends[i].num_output == 20 for i in range(32))


def test_abort_while_waiting_frees_the_queue_place() -> None:
    scheduler = Scheduler(replace(SMALL, max_num_seqs=1, max_queued_requests=3))
    for i in range(3):
        scheduler.submit(RequestSpec(i, ids(8), 30), 0.0)
    scheduler.next_plan(0.0)
    assert scheduler.num_waiting_requests == 2
    for i in (1, 2):
        assert scheduler.abort(i, 0.0)
    assert scheduler.num_waiting_requests == 0 and scheduler.queued_tokens == 0
    scheduler.integrity()


def test_a_row_that_failed_takes_nobody_with_it() -> None:
    """A row without finite logits ends with an error; the others go on and its pages are cleaned before reuse."""
    scheduler = Scheduler(SMALL)
    executor = Executor(SMALL)
    for i in range(2):
        scheduler.submit(RequestSpec(i, ids(9, 10 * i), 3), 0.0)
    plan = scheduler.next_plan(0.0)
    assert plan is not None
    step = executor.launch(plan)
    scheduler.advance(step._replace(failed=(0,)), 0.0)
    (end,) = scheduler.take_finished()
    assert (end.request_id, end.reason, end.num_output) == (0, "error", 0)
    scheduler.submit(RequestSpec(2, ids(9, 0), 3), 0.0)
    while scheduler.has_work:
        plan = scheduler.next_plan(0.0)
        assert plan is not None
        scheduler.advance(executor.launch(plan), 0.0)
    assert {end.request_id: end.reason for end in scheduler.take_finished()} == {1: "length", 2: "length"}


@pytest.mark.parametrize("length", [11, 12, 13])
def test_cold_and_cached_runs_give_the_same_tokens(length: int) -> None:
    specs = [RequestSpec(i, ids(length), 12) for i in range(4)]
    outputs, _, scheduler = drive(replace(SMALL, max_num_seqs=1), specs)
    want = oracle(ids(length).tolist(), 12, (), 0, 64)
    assert all(outputs[i] == want for i in range(4))
    assert scheduler.counters["cached_tokens"] == 3 * ((length - 1) // 4 * 4)


def test_retraction_waits_for_the_steps_in_flight() -> None:
    """The victim's launched tokens still come; its pages go only when the last step that reads them landed."""
    config = replace(SMALL, max_in_flight=3, debug_retract_every=4, num_pages=64)
    scheduler = Scheduler(config)
    executor = Executor(config)
    for i in range(2):
        scheduler.submit(RequestSpec(i, ids(8, 9 * i), 20), 0.0)
    flying = []
    seen = False
    for _ in range(3):
        plan = scheduler.next_plan(0.0)
        assert plan is not None
        flying.append(executor.launch(plan))
    scheduler.advance(flying.pop(0), 0.0)
    plan = scheduler.next_plan(0.0)
    if plan is not None:
        flying.append(executor.launch(plan))
    assert scheduler.state_of(1) == "retracting"
    used = scheduler.snapshot()["tiers"]["device"]["free"]
    while flying:
        assert scheduler.state_of(1) == "retracting"
        assert scheduler.snapshot()["tiers"]["device"]["free"] <= used
        scheduler.advance(flying.pop(0), 0.0)
        scheduler.integrity()
        seen = seen or scheduler.state_of(1) == "retracted"
        if seen:
            break
    assert seen


def test_a_full_pool_never_stands_still() -> None:
    config = replace(SMALL, num_pages=17, max_num_seqs=8)
    rng = random.Random(3)
    specs = [RequestSpec(i, ids(rng.randrange(1, 60), i), rng.randrange(1, 60)) for i in range(40)]
    _, reasons, scheduler = drive(config, specs)
    assert set(reasons.values()) == {"length"} and scheduler.counters["retractions"] > 0


def test_the_oldest_is_never_a_victim() -> None:
    config = replace(SMALL, num_pages=24)
    outputs, _, scheduler = drive(config, [RequestSpec(i, ids(16, i), 40) for i in range(8)], check=False)
    timeline = scheduler.journal.timeline(0)
    assert timeline is not None and scheduler.counters["retractions"] > 0
    assert "retracted" not in [phase for _, phase, _ in timeline]
    assert len(outputs[0]) == 40


def test_an_idle_or_busy_step_walks_nothing_of_the_cache() -> None:
    """Checks are for tests and operators: a step in a scheduler with a large full cache never runs them."""
    scheduler = Scheduler(SMALL)
    executor = Executor(SMALL)
    calls = []
    assert scheduler.next_plan(0.0) is None
    scheduler.submit(RequestSpec(1, ids(8), 4), 0.0)
    while scheduler.has_work:
        plan = scheduler.next_plan(0.0)
        assert plan is not None
        calls.append(plan.table_pages.size + plan.prefill_tokens.size)
        scheduler.advance(executor.launch(plan), 0.0)
    assert calls[1:] == [1, 0, 0], "steady decode carries only changes: one new page, then nothing"


def test_abort_is_legal_in_every_state_and_frees_at_once_or_after_the_fence() -> None:
    config = replace(SMALL, max_num_seqs=1, chunked_prefill_size=8, max_in_flight=2)
    seen = set()
    for turns in range(12):
        for land in (True, False):
            scheduler = Scheduler(config)
            executor = Executor(config)
            scheduler.submit(RequestSpec(0, ids(20), 6), 0.0)
            flying = []
            for _ in range(turns):
                plan = scheduler.next_plan(0.0)
                if plan is not None:
                    flying.append(executor.launch(plan))
                if flying and (land or plan is None):
                    scheduler.advance(flying.pop(0), 0.0)
            state = scheduler.state_of(0)
            if state is None:
                continue
            seen.add(state)
            assert scheduler.abort(0, 0.0) and not scheduler.abort(0, 0.0)
            assert [end.reason for end in scheduler.take_finished()] == ["abort"]
            scheduler.integrity()
            for step in flying:
                outcome = scheduler.advance(step, 0.0)
                assert outcome is not None and len(outcome.tokens) == 0
            assert not scheduler.has_work and scheduler.num_running_requests == 0
            scheduler.flush_cache()
            assert scheduler.snapshot()["tiers"]["device"]["free"] == 32
    assert seen >= {"submitted", "prefilling", "prefilled", "decoding"}


def test_all_gauges_are_zero_once_all_are_aborted() -> None:
    scheduler = Scheduler(SMALL)
    executor = Executor(SMALL)
    for i in range(20):
        scheduler.submit(RequestSpec(i, ids(10, i), 30), 0.0)
    flying = [executor.launch(plan) for plan in (scheduler.next_plan(0.0), scheduler.next_plan(0.0)) if plan]
    for i in range(20):
        scheduler.abort(i, 1.0)
    for step in flying:
        scheduler.advance(step, 1.0)
    view = scheduler.snapshot()
    assert (view["running"], view["waiting"], view["retracted"], view["prefetching"]) == (0, 0, 0, 0)
    assert view["tiers"]["device"]["active"] == view["tiers"]["device"]["shared"] == 0
    assert view["counters"]["aborts"] == 20 and not scheduler.has_work


def test_small_requests_pass_a_blocked_large_one_but_not_for_ever() -> None:
    config = replace(SMALL, max_num_seqs=4, num_pages=24, overtake_window=3, prefix_cache=False)
    scheduler = Scheduler(config)
    executor = Executor(config)
    scheduler.submit(RequestSpec(0, ids(60, 1), 4), 0.0)
    plan = scheduler.next_plan(0.0)
    assert plan is not None
    flying = [executor.launch(plan)]
    scheduler.submit(RequestSpec(1, ids(60, 2), 2), 0.0)  # Does not fit beside the first.
    for i in range(2, 12):
        scheduler.submit(RequestSpec(i, ids(3, i), 2), 0.0)
    order = []
    for _ in range(300):
        plan = scheduler.next_plan(0.0)
        if plan is not None:
            order += [admission.request_id for admission in plan.admitted]
            flying.append(executor.launch(plan))
        if flying:
            scheduler.advance(flying.pop(0), 0.0)
    assert sorted(order) == list(range(1, 12))
    assert order.index(1) == 3, "three passed it, then it was next"


def test_priorities_run_first_and_equals_in_order_of_arrival() -> None:
    config = replace(SMALL, max_num_seqs=1)
    scheduler = Scheduler(config)
    executor = Executor(config)
    for request_id, priority in ((0, 5), (1, 5), (2, 0), (3, 0), (4, 9)):
        scheduler.submit(RequestSpec(request_id, ids(4, request_id), 1, priority=priority), 0.0)
    order = []
    while scheduler.has_work:
        plan = scheduler.next_plan(0.0)
        if plan is not None:
            order += [admission.request_id for admission in plan.admitted]
            scheduler.advance(executor.launch(plan), 0.0)
    assert order == [2, 3, 0, 1, 4]


@pytest.mark.parametrize(("waited", "passing"), [(4.0, 5), (6.0, 1)])
def test_a_request_that_was_blocked_for_long_is_passed_no_more(waited: float, passing: int) -> None:
    config = replace(SMALL, num_pages=24, chunked_prefill_size=128, prefix_cache=False, ageing_s=5.0, max_num_seqs=8)
    scheduler = Scheduler(config)
    executor = Executor(config)
    scheduler.submit(RequestSpec(0, ids(60, 1), 30), 0.0)
    scheduler.submit(RequestSpec(1, ids(60, 2), 2), 0.0)  # Does not fit beside the first.
    scheduler.submit(RequestSpec(2, ids(3, 3), 1), 0.0)
    plan = scheduler.next_plan(0.0)
    assert plan is not None and [admission.request_id for admission in plan.admitted] == [0, 2]
    scheduler.advance(executor.launch(plan), 0.0)
    for i in range(3, 3 + 4):
        scheduler.submit(RequestSpec(i, ids(3, i), 1), waited)
    plan = scheduler.next_plan(waited)
    assert plan is not None and 1 + len(plan.admitted) == passing
    scheduler.advance(executor.launch(plan), waited)
    order = []
    while scheduler.has_work:
        plan = scheduler.next_plan(waited)
        if plan is not None:
            order += [admission.request_id for admission in plan.admitted]
            scheduler.advance(executor.launch(plan), waited)
    assert order[0] == 1


def test_room_to_grow_spares_most_retractions() -> None:
    config = SchedulerConfig(max_num_seqs=16, max_model_len=512, num_pages=40, page_size=16)
    specs = [RequestSpec(i, ids(8 + i % 16, i), 56) for i in range(64)]
    found = []
    for room in (0, 1):
        outputs, _, scheduler = drive(replace(config, room_to_grow=room), specs, seed=3)
        found.append((outputs, scheduler.counters["retractions"]))
    assert found[0][0] == found[1][0]
    assert 0 < 2 * found[1][1] < found[0][1]


def test_waiting_counts_against_priority() -> None:
    config = replace(SMALL, max_num_seqs=1, ageing_s=10.0)
    scheduler = Scheduler(config)
    executor = Executor(config)
    for request_id, priority, now in ((0, 2, 0.0), (1, 0, 19.0), (2, 0, 20.0), (3, 1, 21.0), (4, 0, 21.0)):
        scheduler.submit(RequestSpec(request_id, ids(4, request_id), 1, priority=priority), now)
    order = []
    while scheduler.has_work:
        plan = scheduler.next_plan(21.0)
        if plan is not None:
            order += [admission.request_id for admission in plan.admitted]
            scheduler.advance(executor.launch(plan), 21.0)
    assert order == [1, 0, 2, 4, 3]


def test_a_shared_prefix_that_is_being_computed_is_waited_for() -> None:
    config = replace(SMALL, chunked_prefill_size=16, max_in_flight=2)
    specs = [RequestSpec(i, ids(40), 4) for i in range(4)]
    outputs, _, patient = drive(config, specs, seed=1)
    impatient_outputs, _, impatient = drive(replace(config, share_in_flight=False), specs, seed=1)
    assert outputs == impatient_outputs
    assert patient.counters["cached_tokens"] == 3 * 36
    assert patient.counters["cached_tokens"] > impatient.counters["cached_tokens"]


def test_without_mixed_batches_no_step_holds_both_kinds() -> None:
    config = replace(SMALL, mixed_batch=False, chunked_prefill_size=8)
    scheduler = Scheduler(config)
    executor = Executor(config)
    for i in range(6):
        scheduler.submit(RequestSpec(i, ids(12, i), 6), 0.0)
    kinds = set()
    while scheduler.has_work:
        plan = scheduler.next_plan(0.0)
        if plan is None:
            continue
        assert plan.num_decode in (0, plan.num_rows)
        kinds.add(plan.num_decode > 0)
        scheduler.advance(executor.launch(plan), 0.0)
    assert kinds == {True, False}


@pytest.mark.parametrize(
    "field", [{"stop_token_ids": (1, 2**40)}, {"priority": 2**40}, {"salt": "text"}, {"stop_token_ids": (1, None)}]
)
def test_a_field_out_of_range_raises_and_leaves_no_trace(field: dict[str, object]) -> None:
    scheduler = Scheduler(SMALL)
    for _ in range(100):
        with pytest.raises((OverflowError, TypeError)):
            scheduler.submit(RequestSpec(1, ids(9), 4, **field), 0.0)  # type: ignore[arg-type]
    scheduler.integrity()
    assert not scheduler.has_work and scheduler.num_waiting_requests == 0
    scheduler.submit(RequestSpec(1, ids(9), 4), 0.0)
    assert scheduler.next_plan(0.0) is not None


def test_an_illegal_transition_names_event_and_state() -> None:
    assert issubclass(IllegalTransition, RuntimeError)
    scheduler = Scheduler(SMALL)
    with pytest.raises(TypeError, match="not an event"):
        scheduler.advance("landed", 0.0)  # type: ignore[arg-type]
