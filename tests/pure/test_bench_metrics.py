"""Figures against numpy, and the counts that must agree."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tsd.bench.errors import UsageError
from tsd.bench.metrics import Goals, peak_concurrency, summarise
from tsd.bench.record import RequestRecord


def record(start: float, times: list[float], **fields: object) -> RequestRecord:
    made = RequestRecord(session=0, turn=0, start=start, end=start + (times[-1] if times else 0.1), chunk_times=times)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(st.floats(1e-4, 10), min_size=2, max_size=20), min_size=1, max_size=20))
def test_percentiles_equal_numpy_on_the_raw_samples(gaps: list[list[float]]) -> None:
    records = [record(float(i), list(np.cumsum(row))) for i, row in enumerate(gaps)]
    figures = summarise(records, percentiles=(1, 50, 99, 99.9))
    raw = {
        "ttft": [row[0] for row in gaps],
        "itl": [gap for r in records for gap in np.diff(r.chunk_times)],
        "tpot": [(r.chunk_times[-1] - r.chunk_times[0]) / (len(r.chunk_times) - 1) for r in records],
        "e2el": [r.chunk_times[-1] for r in records],
    }
    for metric, values in raw.items():
        milliseconds = np.asarray(values) * 1e3
        for percentile in (1, 50, 99, 99.9):
            wanted = np.percentile(milliseconds, percentile)
            assert figures[f"p{percentile:g}_{metric}_ms"] == pytest.approx(wanted, rel=1e-9, abs=1e-6)
        assert figures[f"mean_{metric}_ms"] == pytest.approx(milliseconds.mean(), rel=1e-9, abs=1e-6)
        assert figures[f"std_{metric}_ms"] == pytest.approx(milliseconds.std(), rel=1e-6, abs=1e-6)


def test_no_requests_and_only_failures_give_zeros() -> None:
    assert summarise([])["output_throughput"] == 0.0
    figures = summarise([record(0.0, [0.1], error="died"), record(0.0, [], error="not sent")], Goals.parse(["ttft:1"]))
    assert (figures["completed"], figures["failed"], figures["total_output_tokens"]) == (0, 2, 0)
    assert figures["p99_ttft_ms"] == 0.0 and figures["request_goodput"] == 0.0


def test_failed_requests_count_in_the_duration_but_not_in_the_tokens() -> None:
    good = record(0.0, [0.5, 1.0], usage_output=2, input_tokens=10)
    bad = record(0.0, [0.5, 4.0], usage_output=2, error="cut")
    figures = summarise([good, bad])
    assert figures["duration"] == pytest.approx(4.0) and figures["output_throughput"] == pytest.approx(0.5)


def test_peak_second_shares_the_tokens_of_chunks_of_unknown_size() -> None:
    known = record(0.0, [0.1, 0.2, 1.5], chunk_tokens=[1, 4, 1], usage_output=6)
    assert summarise([known])["max_output_tokens_per_s"] == 5
    unknown = record(0.0, [0.1, 0.2, 1.5], usage_output=6)
    assert summarise([unknown])["max_output_tokens_per_s"] == 4


def test_peak_concurrency_counts_overlap_only() -> None:
    assert peak_concurrency([record(0.0, [1.0]), record(1.0, [1.0]), record(1.5, [1.0])]) == 2


def test_counts_are_reconciled() -> None:
    records = [
        record(
            0.0, [0.1, 0.2], chunk_tokens=[1, 1], usage_output=2, requested_output=2, input_tokens=8, cached_tokens=6
        ),
        record(
            0.0, [0.1, 0.2], chunk_tokens=[1, 1], usage_output=3, requested_output=2, requested_input=9, input_tokens=8
        ),
    ]
    figures = summarise(records)
    assert figures["usage_disagrees"] == 1 and figures["output_length_differs"] == 1
    assert figures["input_length_differs"] == 1 and figures["tokens_counted_by"] == "usage"
    assert figures["cached_share"] == pytest.approx(0.75) and figures["tokens_per_chunk"] == pytest.approx(1.25)


@pytest.mark.parametrize("pair", ["ttft", "ttft:x", "itl:5", "ttft:0", "tpot:-1"])
def test_goodput_limits_are_checked(pair: str) -> None:
    with pytest.raises(UsageError, match="--goodput"):
        Goals.parse([pair])
