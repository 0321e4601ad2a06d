"""The simulator at CI size: clean over several seeds, and able to fail."""

from __future__ import annotations

import random

import pytest

from tsd.scheduler import mutants, states
from tsd.scheduler.core import Scheduler
from tsd.scheduler.requests import STATE_LABELS
from tsd.scheduler.simulator import Failure, Knobs, draw_life, main, simulate
from tsd.scheduler.types import SchedulerConfig
from tsd.scheduler.world import Violation, World


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("profile", ["mixed", "device", "tiers", "pressure", "aborts"])
def test_lives_end_clean(profile: str, seed: int) -> None:
    summary = simulate(12_000, seed, profile)
    assert summary.steps >= 12_000
    assert summary.tokens == summary.counters["generation_tokens"] > 0


def test_ten_thousand_aborts_in_every_phase_leave_nothing() -> None:
    aborts = 0
    seed = 100
    while aborts < 10_000:
        aborts += simulate(20_000, seed, "aborts").counters["aborts"]
        seed += 1


def test_the_tiers_are_really_used() -> None:
    counters = simulate(20_000, 11, "tiers").counters
    assert min(counters[name] for name in ("hit_host", "hit_disk", "host_evictions", "retractions")) > 0


def test_a_run_replays_from_its_seed() -> None:
    assert simulate(6_000, 5, "mixed") == simulate(6_000, 5, "mixed")
    assert simulate(6_000, 5, "mixed") != simulate(6_000, 6, "mixed")


class Forgetful:
    """A scheduler that loses the terminal event of every third request."""

    def __init__(self, real: Scheduler) -> None:
        self.real = real
        self.count = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self.real, name)

    def take_finished(self) -> list[object]:
        out = []
        for end in self.real.take_finished():
            self.count += 1
            if self.count % 3:
                out.append(end)
        return list(out)


def test_the_world_notices_a_lost_terminal_event() -> None:
    config, knobs = draw_life(random.Random(1), "device", b"s", 4)
    world = World(Forgetful(Scheduler(config)), 7, knobs, {})  # type: ignore[arg-type]
    with pytest.raises(Violation):
        world.run(4_000)
        world.drain()


def test_a_failure_names_seed_life_and_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(self: object, thorough: bool = True) -> None:
        raise Violation("made up")

    class Broken(Forgetful):
        integrity = broken

    monkeypatch.setattr("tsd.scheduler.simulator.Scheduler", lambda config: Broken(Scheduler(config)))
    with pytest.raises(Failure, match="made up"):
        simulate(100, 4)
    assert main(["--steps", "100", "--seed", "4"]) == 1
    assert "seed 4, profile mixed, life 1" in capsys.readouterr().err


def test_the_command_reports_a_clean_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--steps", "500", "--seed", "2", "--profile", "steady"]) == 0
    assert "clean" in capsys.readouterr().out


def test_every_mutant_applies_to_the_sources_of_today() -> None:
    root = mutants.package_root()
    assert len(mutants.MUTANTS) >= 30
    assert len({mutant.name for mutant in mutants.MUTANTS}) == len(mutants.MUTANTS)
    for mutant in mutants.MUTANTS:
        assert (root / mutant.file).read_text().count(mutant.old) == 1, mutant.name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rotten disk pages believed", "skipped fence on a replaced page"])
def test_a_mutant_is_caught(name: str) -> None:
    mutant = next(mutant for mutant in mutants.MUTANTS if mutant.name == name)
    assert mutants.trial(mutant, 1_000_000, 1).caught_by


def test_the_table_of_states_is_closed_and_printable(capsys: pytest.CaptureFixture[str]) -> None:
    assert tuple(state.name.lower() for state in states.State) == STATE_LABELS
    assert set(states.HOLDS) == set(states.State)
    reached = {states.State.SUBMITTED} | set(states.TRANSITIONS.values())
    assert reached == set(states.State)
    leaving = {source for source, _ in states.TRANSITIONS}
    assert leaving == set(states.State) - {states.State.FINISHED}
    can_abort = {source for source, event in states.TRANSITIONS if event is states.Event.ABORT}
    ended = {states.State.DRAINING, states.State.WRITING_BACK, states.State.ABORTING, states.State.FINISHED}
    assert can_abort == set(states.State) - ended, "abort is legal wherever a request has not ended"
    assert states.main(["--states"]) == 0
    text = capsys.readouterr().out
    assert "stateDiagram-v2" in text and "prefilling --> prefilled: last_chunk" in text
    for state in states.State:
        assert f"{state.name.lower()}: holds" in text


def test_knobs_and_profiles_draw_valid_configurations() -> None:
    rng = random.Random(3)
    for _ in range(200):
        for profile in ("mixed", "tiers", "pressure", "steady"):
            config, knobs = draw_life(rng, profile, b"s", rng.choice((1, 4, 16)))
            assert isinstance(config, SchedulerConfig) and isinstance(knobs, Knobs)
            Scheduler(config)
