"""What operators are told of a request's life, and that it stays bounded; the microbenchmark's keys."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.scheduling import Executor, drive

from tsd.bench import scheduler as bench
from tsd.scheduler.core import Scheduler
from tsd.scheduler.journal import MAX_ENDED, MAX_ENTRIES, MAX_EVENTS, Journal
from tsd.scheduler.types import Refused, RequestSpec, SchedulerConfig


def ids(length: int, first: int = 0) -> np.ndarray:
    return np.arange(first, first + length, dtype=np.int32) % 50


def test_a_timeline_tells_queue_chunks_decode_retraction_and_end() -> None:
    config = SchedulerConfig(
        max_num_seqs=4, max_model_len=64, num_pages=40, page_size=4, chunked_prefill_size=8, debug_retract_every=12
    )
    _, _, scheduler = drive(config, [RequestSpec(i, ids(20, i), 30) for i in range(4)])
    phases = [[phase for _, phase, _ in scheduler.journal.timeline(i) or []] for i in range(4)]
    assert all(one[0] == "queued" and one[-1] == "finished" and "decode" in one for one in phases)
    assert phases[0].count("chunk") >= 3
    told = [one for one in phases if "retracted" in one]
    assert told and all(one.index("resumed") > one.index("retracted") for one in told)
    times = [at for at, _, _ in scheduler.journal.timeline(0) or []]
    assert times == sorted(times)
    kinds = [kind for _, kind, _, _, _ in scheduler.journal.take_events()]
    assert kinds.count("finish") == 4 and "retraction" in kinds
    assert scheduler.journal.take_events() == []


def test_events_name_their_cause() -> None:
    config = SchedulerConfig(max_num_seqs=1, max_model_len=32, num_pages=4, page_size=4)
    scheduler = Scheduler(config)
    executor = Executor(config)
    with pytest.raises(Refused):
        scheduler.submit(RequestSpec(1, ids(16), 1), 0.0)
    for request_id in range(2, 5):
        scheduler.submit(RequestSpec(request_id, ids(12, 15 * request_id), 1), float(request_id))
        plan = scheduler.next_plan(float(request_id))
        assert plan is not None
        step = executor.launch(plan)
        scheduler.advance(step._replace(failed=(0,)) if request_id == 4 else step, float(request_id))
    scheduler.submit(RequestSpec(9, ids(3), 1), 9.0)
    scheduler.abort(9, 9.5)
    events = [(kind, request_id, cause) for _, kind, request_id, cause, _ in scheduler.journal.take_events()]
    assert ("refusal", 1, "never_fits") in events
    assert ("abort", 9, "abort") in events and ("error", 4, "error") in events
    assert any(kind == "eviction" for kind, _, _ in events)


def test_nothing_grows_without_bound() -> None:
    journal = Journal()
    for number in range(3 * MAX_EVENTS):
        journal.event(0.0, "finish", number, "stop", "")
        journal.note(0.0, number, "queued")
        journal.close(1.0, number, "stop")
    assert len(journal.events) == MAX_EVENTS and len(journal.ended) == MAX_ENDED and not journal.live
    for number in range(3 * MAX_ENTRIES):
        journal.note(float(number), 7, "chunk", str(number))
    entries = journal.timeline(7) or []
    assert len(entries) == MAX_ENTRIES and entries[-1][2] == str(3 * MAX_ENTRIES - 1)
    assert journal.timeline(-5) is None


def test_the_microbenchmark_writes_its_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "scheduler.json"
    assert bench.main(["--quick", "--no-peer", "--json", str(target)]) == 0
    found = json.loads(target.read_text())
    assert found == json.loads(capsys.readouterr().out)
    keys = {"decode_us", "decode_us_16k", "admit_hit_us", "admit_miss_us", "agentic_us_per_token"}
    assert keys <= set(found) and set(found["decode_us"]) == {"1", "32"}
    ratios = bench.ratios(found, {**found, "decode_us": {"1": 2 * found["decode_us"]["1"]}})
    assert ratios["decode_us.1"] == 2.0 and ratios["admit_hit_us"] == 1.0
