"""Turns of prefill and decode: who is held, for how long, and how large the steps are that hold both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from support.scheduling import Executor, drive, oracle

from tsd.console.options import resolve
from tsd.console.start import engine_configs
from tsd.engine.config import EngineConfig
from tsd.engine.memory import MemoryPlan, plan_memory
from tsd.scheduler.core import Scheduler
from tsd.scheduler.simulation.turns import Turns
from tsd.scheduler.simulation.violation import Violation
from tsd.scheduler.types import ExecutionPlan, RequestSpec, SchedulerConfig, StepLanded

HOLD = 12
CONFIG = SchedulerConfig(
    max_num_seqs=32,
    max_model_len=4096,
    num_pages=2000,
    page_size=16,
    chunked_prefill_size=1024,
    mixed_chunk_size=512,
    max_in_flight=1,
    prefill_hold=HOLD,
    prefill_balance=64,
)


class Server:
    """A scheduler whose every step lands at once."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.scheduler = Scheduler(config)
        self.executor = Executor(config)
        self.serial = 0

    def submit(self, length: int, max_tokens: int = 4000) -> int:
        self.serial += 1
        prompt = np.arange(self.serial * 1000, self.serial * 1000 + length, dtype=np.int32)
        self.scheduler.submit(RequestSpec(self.serial, prompt, max_tokens), 0.0)
        return self.serial

    def step(self) -> ExecutionPlan:
        plan = self.scheduler.next_plan(0.0)
        assert plan is not None
        landed = self.executor.launch(plan)
        self.scheduler.advance(StepLanded(landed.step, landed.tokens), 0.0)
        self.scheduler.integrity()
        return plan

    def steps(self, count: int) -> Iterator[ExecutionPlan]:
        for _ in range(count):
            yield self.step()


def decoding(rows: int, config: SchedulerConfig = CONFIG) -> Server:
    """A server on which that many rows decode, with no prompt in its past load."""
    server = Server(config)
    for _ in range(rows):
        server.submit(4)
    while server.step().num_decode < rows:
        pass
    return server


def under_load(rows: int, config: SchedulerConfig = CONFIG) -> Server:
    """The same after many steps that each held a prompt's chunk."""
    server = decoding(rows, config)
    for _ in range(4):
        server.submit(2048, 1)
        while not server.scheduler.take_finished():
            server.step()
    return server


def test_a_prompt_that_comes_alone_starts_at_once() -> None:
    server = decoding(8)
    server.submit(100)
    plan = server.step()
    assert plan.num_decode == 8 and plan.num_tokens == 8 + 100


def test_under_load_prompts_are_held_for_so_many_steps_and_run_together() -> None:
    server = under_load(8)
    server.submit(100)
    held = 0
    while (plan := server.step()).num_rows == 8:
        held += 1
        if held == 5:
            server.submit(20)
    assert held == HOLD
    assert plan.num_rows == 10 and plan.num_tokens == 8 + 120
    assert server.scheduler.counters["held_steps"] >= HOLD


def test_the_hold_follows_the_load() -> None:
    server = under_load(2)
    holds = []
    for quiet in (0, 150, 400, 1500):
        for _ in server.steps(quiet):
            pass
        server.submit(30, 1)
        held = 0
        while server.step().num_rows == 2:
            held += 1
        holds.append(held)
    assert holds[0] == HOLD and holds[-1] == 0
    assert holds == sorted(holds, reverse=True) and 0 < holds[2] < HOLD


@pytest.mark.parametrize(("rows", "prompts", "starts"), [(8, 11, False), (8, 12, True), (7, 11, True), (1, 2, True)])
def test_three_prompts_for_each_two_rows_wait_no_longer(rows: int, prompts: int, starts: bool) -> None:
    server = under_load(rows)
    for _ in range(prompts):
        server.submit(20)
    assert (server.step().num_rows > rows) == starts


def test_a_prompt_that_has_begun_runs_in_every_step_until_it_is_done() -> None:
    server = under_load(8)
    server.submit(1000)
    for _ in server.steps(HOLD):
        pass
    tokens = [plan.num_tokens - 8 for plan in server.steps(10)]
    # Steps of twice the balance, then the rest; then it decodes as the others do.
    assert tokens == [120] * 8 + [40, 1]


def test_a_step_grows_with_those_it_serves_in_sizes_that_have_graphs() -> None:
    for rows, size in ((1, 128), (9, 128), (10, 192), (30, 384)):
        server = decoding(rows)
        server.submit(1000)
        assert server.step().num_tokens == size
    wide = replace(CONFIG, max_num_seqs=100, mixed_chunk_size=1024)
    for rows, size in ((41, 512), (42, 768), (80, 1024)):
        server = decoding(rows, wide)
        server.submit(2000)
        assert server.step().num_tokens == size


def test_a_step_of_many_rows_counts_for_more_when_prompts_are_held() -> None:
    for rows, steps in ((8, HOLD), (190, HOLD), (191, HOLD // 2), (319, HOLD // 3)):
        server = under_load(rows, replace(CONFIG, max_num_seqs=400, num_pages=8000))
        server.submit(20)
        held = 0
        while server.step().num_rows == rows:
            held += 1
        assert held == steps


def test_a_step_stays_within_mixed_chunk_size() -> None:
    server = decoding(8, replace(CONFIG, mixed_chunk_size=100))
    server.submit(1000)
    assert server.step().num_tokens == 100


def test_without_a_hold_each_step_takes_what_it_may() -> None:
    server = under_load(8, replace(CONFIG, prefill_hold=0))
    server.submit(1000)
    assert server.step().num_tokens == 512
    assert server.scheduler.counters["held_steps"] == 0


def test_a_request_that_was_pushed_out_is_not_held() -> None:
    server = under_load(8)
    server.scheduler.debug_retract(1)
    server.step()
    server.scheduler.debug_retract(0)
    assert server.scheduler.counters["retractions"] == 1
    assert server.step().num_rows == 8


@pytest.mark.parametrize("retract_every", [0, 5])
@pytest.mark.parametrize("hold", [1, 8, 100])
def test_answers_do_not_depend_on_the_hold(hold: int, retract_every: int) -> None:
    config = SchedulerConfig(
        max_num_seqs=6,
        max_model_len=64,
        num_pages=40,
        page_size=4,
        chunked_prefill_size=16,
        prefill_hold=hold,
        prefill_balance=5,
        debug_retract_every=retract_every,
    )
    specs = [RequestSpec(i, np.arange(i, i + 5 + i % 20, dtype=np.int32) % 50, 3 + i % 9) for i in range(60)]
    outputs, reasons, _ = drive(config, specs)
    assert set(reasons.values()) == {"length"}
    for one in specs:
        assert outputs[one.request_id] == oracle(one.prompt.tolist(), one.max_tokens, (), 0, 64)


@pytest.mark.parametrize("field", ["prefill_hold", "prefill_balance"])
def test_negative_sizes_are_refused(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        Scheduler(replace(CONFIG, **{field: -1}))


def test_the_simulator_notices_prompts_that_never_get_their_turn() -> None:
    server = under_load(2, replace(CONFIG, prefill_hold=1000))
    server.submit(20)
    turns = Turns(replace(CONFIG, prefill_hold=2))
    with pytest.raises(Violation, match="12 steps only decoded"):
        for plan in server.steps(20):
            turns.see(server.scheduler, plan, 0)
    excused = Turns(replace(CONFIG, prefill_hold=2))
    for plan in server.steps(20):
        excused.see(server.scheduler, plan, 1)


def planned(layer_parameters: int, num_layers: int, **settings: object) -> MemoryPlan:
    config = EngineConfig(model="m", **{"device": "cuda:0", **settings})  # type: ignore[arg-type]
    return plan_memory(
        config,
        model_max_len=32768,
        bytes_per_token=147_456,
        free_bytes=120 << 30,
        total_bytes=140 << 30,
        layer_parameters=layer_parameters,
        num_layers=num_layers,
    )


@pytest.mark.parametrize(
    ("parameters", "layers", "tokens"), [(440_000_000, 28, 896), (6_946_000_000, 36, 384), (31_000_000_000, 64, 384)]
)
def test_an_engine_finds_the_balance_of_its_model(parameters: int, layers: int, tokens: int) -> None:
    plan = planned(parameters, layers, prefill_hold=40)
    assert plan.prefill_hold == 40 and 2 * plan.prefill_balance == tokens
    assert ("prefill-hold", "40 steps", f"--prefill-hold; then in steps of {tokens} tokens") in plan.rows()


def test_only_models_whose_chunks_are_long_waits_hold_prompts_by_default() -> None:
    large, small = planned(6_946_000_000, 36), planned(440_000_000, 28)
    assert large.mixed_chunk_size < large.chunked_prefill_size and large.prefill_hold == 40
    assert "default for a model of this size" in large.rows()[-1][2]
    assert small.mixed_chunk_size == small.chunked_prefill_size and small.prefill_hold == 0
    assert small.rows()[-1][2] == "default where a whole chunk is a short wait"


def test_the_hold_is_as_told_and_none_on_the_cpu_or_without_mixed_steps() -> None:
    assert planned(6_946_000_000, 36, prefill_hold=0).prefill_hold == 0
    assert planned(6_946_000_000, 36, prefill_hold=7).rows()[-1][:2] == ("prefill-hold", "7 steps")
    assert planned(6_946_000_000, 36, mixed_batch=False).prefill_hold == 0
    assert "steps of 256 tokens" in planned(6_946_000_000, 36, mixed_chunk_size=256).rows()[-1][2]
    assert planned(6_946_000_000, 36, device="cpu", max_total_tokens=40_000).prefill_hold == 0
    asked = planned(6_946_000_000, 36, device="cpu", max_total_tokens=40_000, prefill_hold=4)
    assert (asked.prefill_hold, asked.prefill_balance) == (4, 0)


@pytest.mark.parametrize(("given", "hold"), [({}, None), ({"prefill_hold": "0"}, 0), ({"prefill_hold": "64"}, 64)])
def test_the_flag_reaches_the_engine(given: dict[str, str], hold: int | None) -> None:
    settings = resolve(given, {}, None)
    assert engine_configs(settings, "m", (0,))[0].prefill_hold == hold
