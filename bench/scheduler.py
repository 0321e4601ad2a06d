"""`tsd bench scheduler`: host time of the control plane alone, beside the peer `tokenspeed-scheduler` when installed.

Owns the scenes and the clock. One process, one thread, no model: sampled tokens are made up. Each figure is a mean over
all timed steps (page boundaries included) of the best of several runs, in microseconds. Steps are timed by the thread's
CPU time, so that other programs on the machine count less; medians (p50) and admissions by the wall.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tsd.bench import scheduler_peer
from tsd.scheduler.core import Scheduler
from tsd.scheduler.types import RequestSpec, SchedulerConfig, StepLanded

PAGE = 64
ROWS = (1, 32, 256, 1024)


def best(runs: int, scene: Callable[[], dict[str, float]]) -> dict[str, float]:
    """The smallest of each figure over several runs, with the collector off."""
    kept: dict[str, float] = {}
    for _ in range(runs):
        gc.collect()
        gc.disable()
        try:
            found = scene()
        finally:
            gc.enable()
        for name, value in found.items():
            kept[name] = min(value, kept.get(name, value))
    return kept


def make(rows: int, context: int, pages: int, budget: int = 8192, room: int = 2048) -> Scheduler:
    """A scheduler with overlap (two plans in flight) and the prefix cache on."""
    return Scheduler(
        SchedulerConfig(
            max_num_seqs=rows,
            max_model_len=context + room,
            num_pages=pages,
            page_size=PAGE,
            chunked_prefill_size=budget,
            max_queued_tokens=1 << 40,
        )
    )


def decode(rows: int, context: int, steps: int, extra_pages: int = 0) -> dict[str, float]:
    """Steady decode: every row at about `context` tokens, lengths spread over a page, stop ids checked."""
    scheduler = make(rows, context, rows * (context // PAGE + 40) + 64 + extra_pages)
    rng = np.random.default_rng(0)
    for i in range(rows):
        prompt = rng.integers(0, 30_000, context - PAGE + 1 + i % PAGE, dtype=np.int32)
        scheduler.submit(RequestSpec(i, prompt, 2000, stop_token_ids=(2,)), 0.0)
    tokens = np.full(rows, 5, np.int32)
    while True:
        plan = scheduler.next_plan(0.0)
        assert plan is not None
        scheduler.advance(StepLanded(plan.step, tokens), 0.0)
        if plan.num_decode == rows:
            break
    flying = scheduler.next_plan(0.0)
    assert flying is not None
    for _ in range(PAGE):
        plan = scheduler.next_plan(0.0)
        assert plan is not None
        scheduler.advance(StepLanded(flying.step, tokens), 0.0)
        flying = plan
    times = np.zeros(steps)
    clock = time.perf_counter_ns
    whole = time.thread_time_ns()
    for i in range(steps):
        began = clock()
        plan = scheduler.next_plan(0.0)
        scheduler.advance(StepLanded(flying.step, tokens), 0.0)
        times[i] = clock() - began
        assert plan is not None
        flying = plan
    whole = time.thread_time_ns() - whole
    return {"mean": whole / steps / 1e3, "p50": float(np.median(times)) / 1e3}


def admission(length: int, pages: int) -> dict[str, float]:
    """One prompt of `length` tokens, cold and then again: submission (hashing), first plan, and both."""
    out: dict[str, float] = {}
    scheduler = make(8, length, pages, budget=1 << 16)
    prompt = np.random.default_rng(1).integers(0, 30_000, length, dtype=np.int32)
    tokens = np.full(8, 5, np.int32)
    clock = time.perf_counter_ns
    for i in range(8):
        if i % 2 == 0:
            prompt = prompt + 1
        spec = RequestSpec(i, prompt, 1)
        began = clock()
        scheduler.submit(spec, 0.0)
        middle = clock()
        plan = scheduler.next_plan(0.0)
        ended = clock()
        assert plan is not None and (plan.admitted[0].num_cached > 0) == (i % 2 == 1)
        scheduler.advance(StepLanded(plan.step, tokens), 0.0)
        scheduler.take_finished()
        kind = "hit" if i % 2 else "miss"
        for name, value in (("us", ended - began), ("submit_us", middle - began), ("plan_us", ended - middle)):
            out[f"{kind}_{name}"] = min(value / 1e3, out.get(f"{kind}_{name}", 1e9))
    return out


def agentic(sessions: int = 256, shared: int = 3000, turns: int = 4, fresh: int = 200, output: int = 64) -> float:
    """Microseconds of host time a generated token: sessions with a shared prefix, several turns, budget 8,192."""
    room = shared + turns * (fresh + output) + PAGE
    scheduler = make(sessions, room, sessions * (room // PAGE + 2), room=64)
    rng = np.random.default_rng(2)
    prefix = rng.integers(0, 30_000, shared, dtype=np.int32)
    new = rng.integers(0, 30_000, (sessions, turns, fresh), dtype=np.int32)
    history = [np.concatenate([prefix, new[i, 0]]) for i in range(sessions)]
    turn = [0] * sessions
    tokens = np.full(sessions, 5, np.int32)
    answer = np.full(output, 5, np.int32)
    spent = generated = 0
    clock = time.thread_time_ns
    for i in range(sessions):
        spec = RequestSpec(i, history[i], output)
        began = clock()
        scheduler.submit(spec, 0.0)
        spent += clock() - began
    flying: list[Any] = []
    while scheduler.has_work:
        began = clock()
        plan = scheduler.next_plan(0.0)
        if plan is not None:
            flying.append(plan)
        if plan is None or len(flying) == 2:
            outcome = scheduler.advance(StepLanded(flying.pop(0).step, tokens), 0.0)
            assert outcome is not None
            generated += len(outcome.tokens)
        ended = scheduler.take_finished()
        spent += clock() - began
        for end in ended:
            i = end.request_id % sessions
            turn[i] += 1
            if turn[i] < turns:
                history[i] = np.concatenate([history[i], answer, new[i, turn[i]]])
                spec = RequestSpec(end.request_id + sessions, history[i], output)
                began = clock()
                scheduler.submit(spec, 0.0)
                spent += clock() - began
    assert generated == sessions * turns * output
    return spent / generated / 1e3


def cache_primitives() -> dict[str, float]:
    """Nanoseconds a page: hashing, and allocation, eviction and freeing under a full pool."""
    from tsd.cache.hashing import PageHasher
    from tsd.cache.pool import PagePool
    from tsd.cache.probe import match_and_evict

    hasher = PageHasher(PAGE, b"bench")
    figures = match_and_evict(hasher, PagePool(4096), 781, 200)
    figures["large_match_ns"] = match_and_evict(hasher, PagePool(1_000_000), 781, 200)["match_ns"]
    return figures


def measure(quick: bool = False) -> dict[str, Any]:
    """Every figure; `quick` for tests."""
    rows = ROWS[:2] if quick else ROWS
    steps = 200 if quick else 1280
    runs = 1 if quick else 3
    decode_all = {str(b): best(runs, lambda b=b: decode(b, 4096, steps)) for b in rows}  # type: ignore[misc]
    wide = 32 if quick else 256
    far = best(runs, lambda: decode(wide, 16_384, steps))
    small = best(runs, lambda: decode(16, 512, steps, 10_000))
    large = best(runs, lambda: decode(16, 512, steps, 10_000 if quick else 1_000_000))
    hit = best(runs, lambda: admission(50_000, 4_000))
    big = best(runs, lambda: admission(50_000, 4_000 if quick else 1_000_000))
    sessions = 16 if quick else 256
    return {
        "decode_us": {name: round(found["mean"], 2) for name, found in decode_all.items()},
        "decode_p50_us": {name: round(found["p50"], 2) for name, found in decode_all.items()},
        "decode_us_16k": round(far["mean"], 2),
        "decode_us_16_rows_by_pool": {"1e4": round(small["mean"], 2), "1e6": round(large["mean"], 2)},
        "decode_p50_us_16_rows_by_pool": {"1e4": round(small["p50"], 2), "1e6": round(large["p50"], 2)},
        "admit_hit_us": round(hit["hit_us"], 1),
        "admit_miss_us": round(hit["miss_us"], 1),
        "admit_hit_plan_us": round(hit["hit_plan_us"], 1),
        "admit_hit_us_1e6_pages": round(big["hit_us"], 1),
        "agentic_us_per_token": round(best(runs, lambda: {"x": agentic(sessions)})["x"], 3),
        "cache_ns_per_page": {name: round(value, 1) for name, value in best(runs, cache_primitives).items()},
    }


def main(argv: list[str]) -> int:
    """`tsd bench scheduler [--json FILE] [--no-peer]`."""
    parser = argparse.ArgumentParser(prog="tsd bench scheduler", description="Time the scheduler and cache alone.")
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE")
    parser.add_argument("--no-peer", action="store_true", help="do not time tokenspeed-scheduler even if installed")
    parser.add_argument("--quick", action="store_true", help="a small run, to see that it works")
    options = parser.parse_args(argv)
    figures = measure(options.quick)
    figures["machine"] = {"python": platform.python_version(), "processor": platform.machine()}
    if not options.no_peer and scheduler_peer.installed():
        figures["peer"] = scheduler_peer.measure(options.quick)
        figures["peer_over_ours"] = ratios(figures, figures["peer"])
    text = json.dumps(figures, indent=2)
    print(text)
    if options.json:
        Path(options.json).write_text(text + "\n", encoding="utf-8")
    return 0


def ratios(ours: dict[str, Any], peer: dict[str, Any]) -> dict[str, float]:
    """How many times longer the peer takes, for every figure both have."""
    out = {
        f"decode_us.{rows}": round(peer["decode_us"][rows] / ours["decode_us"][rows], 1)
        for rows in ours["decode_us"]
        if rows in peer.get("decode_us", {})
    }
    for name in ("decode_us_16k", "admit_hit_us", "admit_miss_us", "agentic_us_per_token"):
        if name in peer:
            out[name] = round(peer[name] / ours[name], 1)
    return out
