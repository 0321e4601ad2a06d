"""The same scenes as `bench/scheduler.py`, driven through the public interface of the wheel `tokenspeed-scheduler`.

Timed per step: the plan, building the events of the step before, and taking them in. Reading its page tables out is
left out, in its favour. Knows only what introspection of the wheel shows.
"""

from __future__ import annotations

import gc
import importlib
import importlib.metadata
import importlib.util
import time
from typing import Any

import numpy as np

PAGE = 64
ROWS = (1, 32, 256, 1024)


def installed() -> bool:
    """Whether the peer can be timed here."""
    return importlib.util.find_spec("tokenspeed_scheduler") is not None


def make(rows: int, pages: int, budget: int = 8192) -> Any:
    """One full-attention group, no host tier, no retraction."""
    peer = importlib.import_module("tokenspeed_scheduler")
    config = peer.SchedulerConfig()
    config.cache_groups = [peer.CacheGroupConfig("full", PAGE, pages, peer.AttnKind.Full)]
    config.prefix_granularity = PAGE
    config.max_batch_size = rows
    config.max_scheduled_tokens = budget
    config.num_device_pages = pages
    config.num_host_pages = 1
    config.num_snapshot_pages = 1
    config.disable_l2_cache = True
    config.enable_mixed_prefill_decode = True
    config.overlap_schedule_depth = 1
    return peer.Scheduler(config)


def submit(scheduler: Any, name: str, tokens: list[int], max_tokens: int) -> None:
    """Queues one request."""
    peer = importlib.import_module("tokenspeed_scheduler")
    spec = peer.RequestSpec()
    spec.request_id = name
    spec.tokens = tokens
    spec.max_new_tokens = max_tokens
    scheduler.submit_requests([spec])


def results(
    plan: Any, done: dict[str, int] | None = None, prompt: dict[str, int] | None = None
) -> tuple[Any, int, list[str]]:
    """The event of a step: one token for every row whose input is complete; finishes rows that reach their length."""
    peer = importlib.import_module("tokenspeed_scheduler")
    event = peer.ExecutionEvent()
    count = 0
    ended: list[str] = []
    for batch in plan.forward:
        extends = batch.num_extends()
        names = batch.request_ids
        lengths = batch.input_lengths
        prefixes = batch.extend_prefix_lens if extends else []
        totals = batch.prefill_lengths if extends else []
        for row, name in enumerate(names):
            result = peer.ForwardEvent.ExtendResult()
            result.request_id = name
            if row < extends and prefixes[row] + lengths[row] < totals[row]:
                result.tokens = []
                event.add_event(result)
                continue
            result.tokens = [5]
            event.add_event(result)
            count += 1
            if done is not None:
                done[name] -= 1
                if done[name] == 0:
                    finish = peer.ForwardEvent.Finish()
                    finish.request_id = name
                    event.add_event(finish)
                    ended.append(name)
    return event, count, ended


def decode(rows: int, context: int, steps: int) -> float:
    """Microseconds a step in steady decode: the best of three means."""
    scheduler = make(rows, rows * (context // PAGE + 40) + 64)
    rng = np.random.default_rng(0)
    for i in range(rows):
        submit(scheduler, str(i), rng.integers(0, 30_000, context - PAGE + 1 + i % PAGE).tolist(), 2000)
    for _ in range(100_000):
        plan = scheduler.next_execution_plan()
        event, count, _ = results(plan)
        scheduler.advance(event)
        if count == rows and all(batch.num_extends() == 0 for batch in plan.forward):
            break
    best = float("inf")
    for _ in range(3):
        began = time.thread_time_ns()
        for _ in range(steps):
            plan = scheduler.next_execution_plan()
            event, _, _ = results(plan)
            scheduler.advance(event)
        best = min(best, (time.thread_time_ns() - began) / steps / 1e3)
    return best


def admission(length: int) -> dict[str, float]:
    """A prompt of `length` tokens, cold and again: building and submitting the request, and its first plan."""
    out: dict[str, float] = {}
    scheduler = make(8, 4_000, 1 << 16)
    base = np.random.default_rng(1).integers(0, 30_000, length)
    clock = time.perf_counter_ns
    for i in range(8):
        tokens = (base + i // 2).tolist()
        began = clock()
        submit(scheduler, str(i), tokens, 1)
        plan = scheduler.next_execution_plan()
        took = (clock() - began) / 1e3
        kind = "admit_hit_us" if i % 2 else "admit_miss_us"
        out[kind] = min(took, out.get(kind, 1e9))
        event, _, _ = results(plan, {str(i): 1})
        scheduler.advance(event)
    return out


def agentic(sessions: int = 256, shared: int = 3000, turns: int = 4, fresh: int = 200, output: int = 64) -> float:
    """Microseconds of host time a generated token on the trace of `bench/scheduler.py`."""
    room = shared + turns * (fresh + output) + PAGE
    scheduler = make(sessions, sessions * (room // PAGE + 2))
    rng = np.random.default_rng(2)
    prefix = rng.integers(0, 30_000, shared).tolist()
    new = rng.integers(0, 30_000, (sessions, turns, fresh)).tolist()
    history = [prefix + new[i][0] for i in range(sessions)]
    done: dict[str, int] = {}
    spent = generated = 0
    clock = time.thread_time_ns
    for i in range(sessions):
        done[f"{i}/0"] = output
        began = clock()
        submit(scheduler, f"{i}/0", history[i], output)
        spent += clock() - began
    while any(left > 0 for left in done.values()):
        began = clock()
        plan = scheduler.next_execution_plan()
        event, count, ended = results(plan, done)
        scheduler.advance(event)
        spent += clock() - began
        generated += count
        for name in ended:
            i, turn = (int(part) for part in name.split("/"))
            if turn + 1 < turns:
                history[i] = history[i] + [5] * output + new[i][turn + 1]
                done[f"{i}/{turn + 1}"] = output
                began = clock()
                submit(scheduler, f"{i}/{turn + 1}", history[i], output)
                spent += clock() - began
    return spent / generated / 1e3


def measure(quick: bool = False) -> dict[str, Any]:
    """The figures both have, under the same names."""
    gc.collect()
    gc.disable()
    try:
        rows = ROWS[:2] if quick else ROWS
        figures: dict[str, Any] = {"version": importlib.metadata.version("tokenspeed-scheduler")}
        figures["decode_us"] = {str(b): round(decode(b, 4096, 50 if b > 32 else 400), 2) for b in rows}
        figures["decode_us_16k"] = round(decode(32 if quick else 256, 16_384, 50), 2)
        figures.update({name: round(value, 1) for name, value in admission(50_000).items()})
        figures["agentic_us_per_token"] = round(min(agentic(16 if quick else 256) for _ in range(2)), 3)
    finally:
        gc.enable()
    return figures
