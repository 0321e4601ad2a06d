"""The simulator at CI size: clean over several seeds, and able to fail."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tsd.scheduler import states
from tsd.scheduler.core import Scheduler
from tsd.scheduler.requests import STATE_LABELS
from tsd.scheduler.simulation import mutants
from tsd.scheduler.simulation.knobs import Knobs
from tsd.scheduler.simulation.simulator import Failure, draw_life, main, simulate
from tsd.scheduler.simulation.violation import Violation
from tsd.scheduler.simulation.world import World
from tsd.scheduler.types import SchedulerConfig


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("profile", ["mixed", "device", "tiers", "pressure", "aborts", "faults"])
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
    counters = simulate(30_000, 12, "tiers").counters
    assert min(counters[name] for name in ("hit_host", "hit_disk", "host_evictions", "retractions")) > 0


def test_engines_die_within_a_life_and_find_their_disk_again() -> None:
    summary = simulate(20_000, 4, "faults")
    assert summary.deaths > 20 and summary.counters["hit_disk"] > 0


def test_withheld_pages_slow_a_life_down_and_never_stop_it() -> None:
    config, knobs = draw_life(random.Random(2), "pressure", b"s", 4)
    told: list[tuple[int, int]] = []

    class Watched(Forgetful):
        def withhold(self, device: int, host: int = 0) -> None:
            told.append((device, host))
            self.real.withhold(device, host)

        def take_finished(self) -> list[object]:
            return list(self.real.take_finished())

    knobs = replace(knobs, squeeze_turns=10, crash_turns=0, patience=500)
    world = World(lambda: Watched(Scheduler(config)), 9, knobs, {})  # type: ignore[arg-type,return-value]
    world.run(4_000)
    world.drain()
    assert max(told)[0] > config.num_pages * 0.9 and (0, 0) in told


def test_a_run_replays_from_its_seed() -> None:
    assert simulate(6_000, 5, "mixed") == simulate(6_000, 5, "mixed")
    assert simulate(6_000, 5, "mixed") != simulate(6_000, 6, "mixed")


def test_an_event_for_a_request_of_an_engine_that_died_is_noticed() -> None:
    config, knobs = draw_life(random.Random(1), "device", b"s", 4)
    born: list[Scheduler] = []

    class Undead(Forgetful):
        """Hands out the terminal events of the one before it too."""

        def take_finished(self) -> list[object]:
            old = born[-2] if len(born) > 1 else None
            if old is not None:
                for request_id in range(1, 2_000):
                    old.abort(request_id, 0.0)
            return [*(old.take_finished() if old else ()), *self.real.take_finished()]

    def start() -> Scheduler:
        born.append(Scheduler(config))
        return Undead(born[-1])  # type: ignore[return-value]

    world = World(start, 7, replace(knobs, crash_turns=200), {})
    with pytest.raises(Violation, match="is not live"):
        world.run(4_000)


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
    world = World(lambda: Forgetful(Scheduler(config)), 7, knobs, {})  # type: ignore[arg-type,return-value]
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

    monkeypatch.setattr("tsd.scheduler.simulation.simulator.Scheduler", lambda config: Broken(Scheduler(config)))
    with pytest.raises(Failure, match="made up"):
        simulate(100, 4)
    assert main(["--steps", "100", "--seed", "4"]) == 1
    assert "seed 4, profile mixed, life 1" in capsys.readouterr().err


def test_the_command_reports_a_clean_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--steps", "500", "--seed", "2", "--profile", "steady"]) == 0
    assert "clean" in capsys.readouterr().out
    assert main(["--steps", "8000", "--seed", "2", "--profile", "all"]) == 0
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
