"""`tsd simulate`: the real scheduler and cache in a made-up world, millions of steps a minute, replayable from a seed.

A run is a row of lives. Each life draws a configuration and chances from the seed, runs some thousands of steps with
every invariant checked after each, and ends either by draining (nothing may be left) or by being killed, after which
the next life, of other sizes, finds what was on disk. Within a life the pools shrink and grow again, the disk fills up,
and the engine dies and starts anew. Knows no torch and no wall time but for its own report.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from tsd.scheduler.core import Scheduler
from tsd.scheduler.simulation.knobs import Knobs
from tsd.scheduler.simulation.world import World
from tsd.scheduler.types import SchedulerConfig

LIFE = 5_000
SWEEP = 2_500
PROFILES = ("mixed", "device", "tiers", "pressure", "aborts", "faults", "steady")


@dataclass(frozen=True)
class Summary:
    """What a run did."""

    steps: int
    lives: int
    kills: int
    """Lives that ended by being killed."""
    deaths: int
    """Engines that died within a life."""
    tokens: int
    counters: dict[str, int]


class Failure(Exception):
    """A violation with what replays it."""

    before: int = 0
    """Steps of earlier runs of a sweep."""

    def __init__(self, seed: int, profile: str, life: int, step: int, cause: BaseException) -> None:
        self.seed = seed
        self.profile = profile
        self.life = life
        self.step = step
        self.cause = cause
        super().__init__(
            f"{type(cause).__name__}: {cause}\n"
            f"  seed {seed}, profile {profile}, life {life}, step {step}; replay: "
            f"tsd simulate --seed {seed} --profile {profile} --steps {step + 1}"
        )


def draw_life(rng: random.Random, profile: str, secret: bytes, page_size: int) -> tuple[SchedulerConfig, Knobs]:
    """One life's configuration. `device` has one tier; `pressure` a pool far too small; `faults` more misfortune
    within a life; `steady` is for timing."""
    if profile == "steady":
        config = SchedulerConfig(
            max_num_seqs=16, max_model_len=320, num_pages=360, page_size=16, chunked_prefill_size=64, kv_events=False
        )
        return config, Knobs(vocab=30_000, abort=0, deadline=0, fail_row=0, output=280, land=1024, too_long=0)
    tiers = profile == "tiers" or (profile in ("mixed", "pressure", "aborts", "faults") and rng.random() < 0.6)
    seqs = rng.choice((1, 2, 4, 8, 16, 24))
    longest = rng.randrange(3 * page_size + 4, min(200, 40 * page_size + 20))
    full = min(400, seqs * (longest // page_size + 1))
    low, high = (0.1, 0.4) if profile == "pressure" else (0.2, 1.5)
    pages = max(3, longest // page_size // 2 + 1, int(full * rng.uniform(low, high)))
    host = int(pages * rng.uniform(0.3, 3.0)) if tiers else 0
    config = SchedulerConfig(
        max_num_seqs=seqs,
        max_model_len=longest,
        num_pages=pages,
        page_size=page_size,
        chunked_prefill_size=rng.choice((8, 16, 32, 64, 128)),
        prefill_hold=rng.choice((0, 0, 1, 4, 24)),
        prefill_balance=rng.choice((0, 4, 24)),
        mixed_batch=rng.random() < 0.75,
        prefix_cache=tiers or rng.random() < 0.85,
        max_in_flight=rng.choice((1, 2, 2, 3)),
        max_queued_requests=rng.choice((4, 64)),
        overtake_window=rng.choice((0, 2, 16)),
        ageing_s=rng.choice((0.0, 0.05, 30.0)),
        room_to_grow=rng.choice((0, 1, 1, 2)),
        host_pages=host,
        disk_blocks=rng.choice((0, 8, 64, 512)) if tiers else 0,
        disk_threshold_pages=rng.choice((1, 2, 4)),
        hash_secret=secret,
        kv_events=rng.random() < 0.3,
        share_in_flight=rng.random() < 0.7,
        debug_retract_every=rng.choice((0, 0, 0, 2, 7)),
    )
    knobs = Knobs(
        live=rng.choice((2, 8, 16, 32)),
        submit=rng.choice((64, 256, 900)),
        abort=rng.choice((100, 300)) if profile == "aborts" else rng.choice((0, 4, 60)),
        deadline=rng.choice((0, 60)),
        fail_row=rng.choice((0, 0, 4)),
        fail_move=rng.choice((0, 60, 300)),
        rot=rng.choice((0, 40)),
        land=rng.choice((200, 600, 1024)),
        layers=rng.choice((0, 100, 1024)),
        max_delay=rng.choice((0, 3, 20)),
        tail=rng.choice((2, 12, 60)),
        output=rng.choice((4, 40, 200)),
        **draw_faults(rng, profile),
    )
    return config, knobs


def draw_faults(rng: random.Random, profile: str) -> dict[str, int]:
    """How often memory is short, the disk full and the engine dead within a life."""
    if profile == "faults":
        return {
            "squeeze_turns": rng.choice((20, 100, 2_000)),
            "disk_turns": rng.choice((50, 500)),
            "crash_turns": rng.choice((150, 600)),
        }
    return {
        "squeeze_turns": rng.choice((0, 0, 1_000)),
        "disk_turns": rng.choice((0, 400)),
        "crash_turns": rng.choice((0, 0, 2_000)),
    }


def simulate(steps: int, seed: int, profile: str = "mixed", check_every: int | None = None) -> Summary:
    """Runs `steps` steps; raises Failure at the first violation."""
    rng = random.Random(f"{seed}/{profile}")
    disk: dict[bytes, bytes] = {}
    secret = rng.randbytes(32)
    page_size = rng.choice((1, 2, 4, 4, 8, 16))
    done = lives = kills = deaths = tokens = 0
    totals: dict[str, int] = {}
    while done < steps:
        lives += 1
        config, knobs = draw_life(rng, profile, secret, page_size)
        if check_every is not None:
            knobs = replace(knobs, check_every=check_every)
        life_seed = rng.getrandbits(63)
        planned = min(LIFE, steps - done)
        killed = rng.random() < 0.2 and profile != "steady"
        world = World(partial(Scheduler, config), life_seed, knobs, disk)
        try:
            world.run(planned)
            if not killed:
                world.drain()
        except Exception as cause:
            raise Failure(seed, profile, lives, done + world.step, cause) from cause
        done += world.step
        deaths += world.deaths
        tokens += world.tokens_checked
        for name, value in world.close().items():
            totals[name] = totals.get(name, 0) + value
        if killed:
            kills += 1
        elif rng.random() < 0.5 or not disk:
            disk = {}
            secret = rng.randbytes(32)
            page_size = rng.choice((1, 2, 4, 4, 8, 16))
    return Summary(done, lives, kills, deaths, tokens, totals)


def sweep(steps: int, seed: int) -> Iterator[Summary]:
    """Every profile but `steady` in turn, in rounds of ever longer runs: what is easy to find is found early.

    Raises Failure; its `before` counts the steps of the runs before it.
    """
    done = turn = 0
    length = SWEEP
    while done < steps:
        for profile in PROFILES[:-1]:
            if done >= steps:
                break
            try:
                summary = simulate(min(length, steps - done), seed + turn, profile)
            except Failure as failure:
                failure.before = done
                raise
            done += summary.steps
            yield summary
        turn += 1
        length *= 2


def merge(parts: list[Summary]) -> Summary:
    """Several runs as one."""
    totals: dict[str, int] = {}
    for part in parts:
        for name, value in part.counters.items():
            totals[name] = totals.get(name, 0) + value
    return Summary(
        sum(part.steps for part in parts),
        sum(part.lives for part in parts),
        sum(part.kills for part in parts),
        sum(part.deaths for part in parts),
        sum(part.tokens for part in parts),
        totals,
    )


def main(argv: list[str]) -> int:
    """`tsd simulate`. Exit code 1 when an invariant broke, after printing what replays it."""
    parser = argparse.ArgumentParser(
        prog="tsd simulate", description="Run the scheduler and cache in a simulated world and check every invariant."
    )
    parser.add_argument("--steps", type=int, default=100_000, help="steps to run (default 100000)")
    parser.add_argument("--seed", type=int, default=1, help="everything follows from it (default 1)")
    parser.add_argument(
        "--profile", choices=(*PROFILES, "all"), default="mixed", help="what kind of lives (default mixed)"
    )
    parser.add_argument("--check-every", type=int, default=None, help="steps between full checks (0: never)")
    parser.add_argument("--mutants", action="store_true", help="break the code in known ways and see each one caught")
    options = parser.parse_args(argv)
    if options.mutants:
        from tsd.scheduler.simulation.mutants import hunt

        return hunt(options.steps, options.seed)
    began = time.perf_counter()
    try:
        if options.profile == "all":
            summary = merge(list(sweep(options.steps, options.seed)))
        else:
            summary = simulate(options.steps, options.seed, options.profile, options.check_every)
    except Failure as failure:
        print(failure, file=sys.stderr)
        return 1
    took = time.perf_counter() - began
    print(f"{summary.steps} steps in {took:.1f} s ({summary.steps / took:,.0f} a second), seed {options.seed}: clean")
    print(
        f"{summary.lives} lives, {summary.kills} killed, {summary.deaths} engines died within one; "
        f"{summary.tokens} tokens equal the oracle's"
    )
    print(", ".join(f"{name} {value}" for name, value in summary.counters.items()))
    return 0
