"""The scheduler against a small executor: outputs equal an oracle's, refusals, deadlines, failures."""

from __future__ import annotations

import random

import numpy as np
import pytest
from support.scheduling import Executor, drive, oracle

from tsd.scheduler.core import Scheduler, SchedulerFault
from tsd.scheduler.types import Refused, RequestSpec, SchedulerConfig, StepLanded


def make_specs(rng: random.Random, count: int, longest: int, shared: list[int]) -> list[RequestSpec]:
    specs = []
    for request_id in range(count):
        prompt = shared[: rng.randrange(len(shared))] + [
            rng.randrange(50) for _ in range(rng.randrange(1, longest // 2))
        ]
        specs.append(
            RequestSpec(
                request_id=request_id,
                prompt=np.asarray(prompt[: longest - 1], np.int32),
                max_tokens=rng.randrange(1, longest),
                min_tokens=rng.randrange(3),
                stop_token_ids=(7, 9),
            )
        )
    return specs


@pytest.mark.parametrize("seed", range(24))
def test_output_equals_the_oracle_under_pressure(seed: int) -> None:
    rng = random.Random(seed)
    page_size = rng.choice([1, 2, 3, 4, 8])
    num_pages = max(4, rng.randrange(24, 160) // page_size)
    config = SchedulerConfig(
        max_num_seqs=rng.randrange(1, 9),
        max_model_len=rng.randrange(8, 80),
        num_pages=num_pages,
        page_size=page_size,
        chunked_prefill_size=rng.randrange(1, 40),
        mixed_batch=rng.random() < 0.7,
        prefix_cache=rng.random() < 0.8,
        max_in_flight=rng.randrange(1, 4),
    )
    longest = min(config.max_model_len, num_pages * page_size)
    specs = make_specs(rng, 30, longest, [rng.randrange(50) for _ in range(30)])
    outputs, reasons, scheduler = drive(config, specs, seed=seed)
    for spec in specs:
        want = oracle(spec.prompt.tolist(), spec.max_tokens, spec.stop_token_ids, spec.min_tokens, longest)
        assert outputs[spec.request_id] == want
        stopped = want[-1] in spec.stop_token_ids and len(want) >= spec.min_tokens
        assert reasons[spec.request_id] == ("stop" if stopped else "length")
    scheduler.flush_cache()
    assert scheduler.snapshot()["tiers"]["device"]["free"] == num_pages


def test_a_small_pool_forces_retractions() -> None:
    config = SchedulerConfig(max_num_seqs=8, max_model_len=60, num_pages=20, page_size=4, chunked_prefill_size=64)
    specs = [RequestSpec(i, np.full(10, i, np.int32), 40) for i in range(20)]
    outputs, reasons, scheduler = drive(config, specs)
    assert scheduler.counters["retractions"] >= 10
    for one in specs:
        assert outputs[one.request_id] == oracle(one.prompt.tolist(), 40, (), 0, 60)
    assert set(reasons.values()) == {"length"}


@pytest.mark.parametrize("seed", range(8))
def test_aborts_at_random_leave_nothing(seed: int) -> None:
    rng = random.Random(seed)
    config = SchedulerConfig(
        max_num_seqs=4, max_model_len=64, num_pages=24, page_size=4, chunked_prefill_size=16, max_in_flight=2
    )
    specs = make_specs(rng, 40, 64, [rng.randrange(50) for _ in range(30)])
    outputs, reasons, scheduler = drive(config, specs, abort_rate=0.3, seed=seed)
    assert set(reasons) == set(outputs)
    for spec in specs:
        want = oracle(spec.prompt.tolist(), spec.max_tokens, spec.stop_token_ids, spec.min_tokens, 64)
        assert outputs[spec.request_id] == want[: len(outputs[spec.request_id])]
    scheduler.flush_cache()
    assert scheduler.snapshot()["tiers"]["device"]["free"] == 24
    assert scheduler.num_running_requests == 0


def spec(request_id: int, length: int, max_tokens: int = 4, **more: object) -> RequestSpec:
    return RequestSpec(request_id, np.arange(length, dtype=np.int32), max_tokens, **more)  # type: ignore[arg-type]


def test_what_can_never_run_is_refused_at_once() -> None:
    scheduler = Scheduler(
        SchedulerConfig(max_num_seqs=2, max_model_len=100, num_pages=10, page_size=4, max_queued_requests=2)
    )
    cases = [(100, "context_length"), (40, "never_fits")]
    for length, code in cases:
        with pytest.raises(Refused) as caught:
            scheduler.submit(spec(1, length), 0.0)
        assert caught.value.code == code
    scheduler.submit(spec(1, 39), 0.0)
    with pytest.raises(Refused, match="in use"):
        scheduler.submit(spec(1, 3), 0.0)
    scheduler.submit(spec(2, 3), 0.0)
    with pytest.raises(Refused) as caught:
        scheduler.submit(spec(3, 3), 0.0)
    assert caught.value.code == "queue_full"
    assert scheduler.counters["refusals"] == 4


def test_a_prompt_one_short_of_the_limit_gives_one_token() -> None:
    config = SchedulerConfig(max_num_seqs=2, max_model_len=20, num_pages=10, page_size=4)
    outputs, reasons, _ = drive(config, [spec(1, 19, 50)])
    assert len(outputs[1]) == 1
    assert reasons[1] == "length"


def test_a_second_identical_prompt_hits_all_but_the_last_token() -> None:
    config = SchedulerConfig(max_num_seqs=2, max_model_len=64, num_pages=32, page_size=4)
    scheduler = Scheduler(config)
    executor = Executor(config)
    cached = []
    for request_id in range(2):
        scheduler.submit(spec(request_id, 16, 1), 0.0)
        plan = scheduler.next_plan(0.0)
        assert plan is not None
        cached.append(plan.admitted[0].num_cached)
        scheduler.advance(executor.launch(plan), 0.0)
    assert cached == [0, 12]
    scheduler.submit(RequestSpec(9, np.arange(16, dtype=np.int32), 1, salt=b"other tenant"), 0.0)
    plan = scheduler.next_plan(0.0)
    assert plan is not None and plan.admitted[0].num_cached == 0


def test_steps_must_land_in_order() -> None:
    scheduler = Scheduler(SchedulerConfig(max_num_seqs=2, max_model_len=64, num_pages=32, page_size=4))
    scheduler.submit(spec(1, 5), 0.0)
    first = scheduler.next_plan(0.0)
    second = scheduler.next_plan(0.0)
    assert first is not None and second is not None
    assert scheduler.next_plan(0.0) is None
    with pytest.raises(SchedulerFault, match="oldest in flight"):
        scheduler.advance(StepLanded(second.step, np.zeros(1, np.int32)), 0.0)


def test_a_failed_row_ends_with_an_error_and_its_pages_are_cleaned_before_reuse() -> None:
    config = SchedulerConfig(max_num_seqs=2, max_model_len=16, num_pages=4, page_size=4)
    scheduler = Scheduler(config)
    scheduler.submit(spec(1, 3), 0.0)
    plan = scheduler.next_plan(0.0)
    assert plan is not None and len(plan.zero_pages) == 0
    page = int(plan.table_pages[0])
    scheduler.advance(StepLanded(plan.step, np.zeros(1, np.int32), (0,)), 0.0)
    (end,) = scheduler.take_finished()
    assert end.reason == "error" and end.num_output == 0
    scheduler.submit(spec(2, 3), 0.0)
    plan = scheduler.next_plan(0.0)
    assert plan is not None
    assert plan.zero_pages.tolist() == [page] == plan.table_pages.tolist()


def test_a_deadline_ends_a_request_wherever_it_is() -> None:
    scheduler = Scheduler(SchedulerConfig(max_num_seqs=1, max_model_len=64, num_pages=32, page_size=4))
    scheduler.submit(spec(1, 5, 40, deadline=5.0), 0.0)
    scheduler.submit(spec(2, 5, 40, deadline=3.0), 0.0)
    assert scheduler.next_plan(0.0) is not None
    scheduler.next_plan(4.0)
    assert [(end.request_id, end.reason) for end in scheduler.take_finished()] == [(2, "deadline")]
    scheduler.next_plan(6.0)
    assert scheduler.in_flight == 2
    scheduler.abort(1, 6.0)
    assert scheduler.has_work
