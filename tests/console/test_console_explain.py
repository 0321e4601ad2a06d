"""Why is TTFT up: each cause from numbers that show it and nothing else, and silence when nothing moved."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tsd.console.explain import Level, explain
from tsd.console.moment import EngineMoment, Moment
from tsd.console.snapshot import Latency, Percentiles, Slo

SLO = Slo(ttft_ms=500, tpot_ms=50)
ENGINES = {0: EngineMoment(waiting=0, state="ready", cached_s=800.0), 1: EngineMoment(waiting=0, state="ready")}


def latency(ttft: float, queue: float = 5.0) -> Latency:
    return Latency(
        window_s=60, ttft_ms=Percentiles(p50=ttft / 2, p95=ttft, p99=2 * ttft), queue_ms=Percentiles(p95=queue)
    )


CALM = Moment(
    time=0.0,
    latency=latency(200),
    arrivals_s=10.0,
    finished_s=10.0,
    prompt_s=1000.0,
    output_s=500.0,
    retractions_s=0.0,
    evictions_s=0.0,
    running=20,
    waiting=0,
    retracted=0,
    available=0.6,
    hit_ratio=0.8,
    step_ms=12.0,
    gap_us=40.0,
    prefill_prompt=500.0,
    clock_mhz=1980.0,
    temp_c=60.0,
    compilations=0,
    server_state="ready",
    engines=ENGINES,
)

UP = replace(CALM, latency=latency(1800))


def story(now: Moment, before: Moment = CALM, seconds: int = 120, recent: int = 12) -> list[Moment]:
    """`before` for a while, then `now`."""
    return [replace(before if at < seconds - recent else now, time=float(at)) for at in range(seconds)]


def kinds(moments: list[Moment], slo: Slo = SLO) -> list[str]:
    return [cause.kind for cause in explain(moments, slo).causes]


def test_nothing_yet():
    assert explain((), SLO).level is Level.UNKNOWN
    found = explain([replace(CALM, latency=Latency())], SLO)
    assert found.level is Level.UNKNOWN and "nothing to explain" in found.headline and not found.causes


def test_a_calm_server_has_no_causes():
    found = explain(story(CALM), SLO)
    assert found.level is Level.OK and not found.causes
    assert found.headline == "TTFT p95 is 200 ms, within its target (500 ms)."


def test_the_headline_has_the_numbers():
    found = explain(story(UP), SLO)
    assert found.level is Level.BAD
    assert found.headline == "TTFT p95 is 1.80 s, 3.6× its target (500 ms), 9.0× what it was (200 ms)."


def test_without_a_target_the_past_is_the_measure():
    assert explain(story(CALM), Slo()).level is Level.OK
    found = explain(story(UP), Slo())
    assert found.level is Level.WATCH and "9.0× what it was" in found.headline


def test_rising_within_the_target_is_watched():
    assert explain(story(replace(CALM, latency=latency(400))), SLO).level is Level.WATCH


CASES = {
    "memory": replace(UP, available=0.01, retractions_s=0.5, retracted=3),
    "queue": replace(UP, latency=latency(1800, queue=1500), waiting=40, arrivals_s=18.0, finished_s=9.0),
    "cache": replace(UP, hit_ratio=0.2, prompt_s=4000.0),
    "prefill": replace(UP, prefill_prompt=24_000.0),
    "host gap": replace(UP, gap_us=4000.0),
    "slow steps": replace(UP, step_ms=30.0, running=60),
    "clocks": replace(UP, step_ms=30.0, clock_mhz=1200.0, temp_c=88.0),
    "compilation": replace(UP, compilations=3),
    "uneven": replace(UP, engines={n: EngineMoment(waiting=20 if n == 2 else 0, state="ready") for n in range(4)}),
}


@pytest.mark.parametrize("kind", CASES)
def test_each_cause_is_found_alone(kind):
    assert kinds(story(CASES[kind])) == [kind]


@pytest.mark.parametrize("kind", CASES)
def test_each_cause_says_its_numbers_and_where_to_look(kind):
    cause = explain(story(CASES[kind]), SLO).causes[0]
    assert any(c.isdigit() for c in cause.evidence) and cause.advice
    assert cause.screen in {"overview", "pages", "requests", "events", "kernels"}


def test_the_numbers_of_a_queue():
    cause = explain(story(CASES["queue"]), SLO).causes[0]
    assert cause.title == "Requests queue: more come than are served"
    assert cause.evidence == "40 wait (were 0), 18.0/s arrive, 9.0/s finish, queue p95 1.50 s = 83% of TTFT"


def test_the_numbers_of_a_full_pool():
    cause = explain(story(CASES["memory"]), SLO).causes[0]
    assert cause.evidence == "1.0% of pages can be taken (was 60%), 30 retractions/min, 3 retracted wait to return"


def test_worst_first():
    both = replace(CASES["cache"], available=0.0, retractions_s=1.0, waiting=30, arrivals_s=20.0, finished_s=10.0)
    found = explain(story(both), SLO).causes
    assert [cause.score for cause in found] == sorted((cause.score for cause in found), reverse=True)
    assert {"memory", "queue", "cache"} <= {cause.kind for cause in found}


def test_a_dead_engine_is_told_even_while_ttft_is_fine():
    dead = replace(CALM, engines={**ENGINES, 1: EngineMoment(state="failed")})
    found = explain(story(dead), SLO)
    assert [cause.kind for cause in found.causes] == ["engine down"] and found.level is Level.BAD
    assert "engine 1 is failed; 1 of 2 carry the load" in found.causes[0].evidence


@pytest.mark.parametrize("state", ["paused", "draining", "starting"])
def test_a_held_server_is_told(state):
    assert kinds(story(replace(CALM, server_state=state)))[0] == "held"


def test_a_cause_that_is_over_is_told_while_the_window_holds_it():
    past = [*story(CASES["memory"], seconds=100), *story(UP, before=UP, seconds=25)]
    moments = [replace(moment, time=float(at)) for at, moment in enumerate(past)]
    cause = explain(moments, SLO).causes[0]
    assert cause.kind == "over" and "KV memory is full" in cause.title.replace("kV", "KV") and "s ago" in cause.evidence


def test_when_nothing_moved_it_says_so_with_the_numbers():
    cause = explain(story(UP, before=replace(CALM, latency=latency(200))), SLO).causes[0]
    assert cause.kind == "unknown" and "hit rate 80%" in cause.evidence


def test_a_console_that_just_opened_says_that_it_cannot_compare_yet():
    cause = explain([replace(UP, time=float(at)) for at in range(10)], SLO).causes[0]
    assert cause.title == "No calm before to compare with yet" and "30 s" in cause.advice


def test_missing_numbers_never_raise():
    bare = [Moment(time=float(at), latency=latency(900)) for at in range(60)]
    assert explain(bare, SLO).level is Level.BAD
    assert explain([Moment(time=1.0)], Slo()).level is Level.UNKNOWN
