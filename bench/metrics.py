"""From raw records to figures: throughputs, latency statistics, goodput, and checks of the counts.

Every definition is in README.md beside this file. Times in records are seconds, figures are milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tsd.bench.errors import UsageError
from tsd.bench.record import RequestRecord

METRICS = ("ttft", "tpot", "itl", "e2el")
DEFAULT_PERCENTILES = (50.0, 90.0, 95.0, 99.0)


def samples_ms(records: Iterable[RequestRecord], metric: str) -> np.ndarray:
    """Raw samples of one metric over finished requests, milliseconds."""
    values: list[float] = []
    for record in records:
        if not record.ok:
            continue
        if metric == "itl":
            values.extend(record.itls)
        else:
            value = getattr(record, metric)
            if value is not None:
                values.append(value)
    return np.asarray(values, dtype=np.float64) * 1e3


def percentile_name(percentile: float) -> str:
    """99 → p99, 99.9 → p99.9."""
    return f"p{percentile:g}"


def statistics(samples: np.ndarray, metric: str, percentiles: Sequence[float]) -> dict[str, float]:
    """mean, median, std and percentiles (linear interpolation); 0 where there is no sample."""
    some = samples.size > 0
    figures = {
        f"mean_{metric}_ms": float(np.mean(samples)) if some else 0.0,
        f"median_{metric}_ms": float(np.median(samples)) if some else 0.0,
        f"std_{metric}_ms": float(np.std(samples)) if some else 0.0,
    }
    for percentile in percentiles:
        value = float(np.percentile(samples, percentile)) if some else 0.0
        figures[f"{percentile_name(percentile)}_{metric}_ms"] = value
    return figures


@dataclass(frozen=True)
class Goals:
    """Per-request limits, milliseconds, by metric (ttft, tpot, e2el)."""

    limits: dict[str, float]

    @classmethod
    def parse(cls, pairs: Sequence[str]) -> Goals:
        """From `ttft:500 tpot:50`."""
        limits = {}
        for pair in pairs:
            name, _, value = pair.partition(":")
            if name not in ("ttft", "tpot", "e2el"):
                raise UsageError(f"--goodput {pair}: the metric must be ttft, tpot or e2el")
            try:
                limits[name] = float(value)
            except ValueError:
                raise UsageError(f"--goodput {pair}: give milliseconds, as in ttft:500") from None
            if not limits[name] > 0:
                raise UsageError(f"--goodput {pair}: the limit must be above zero")
        return cls(limits)

    def met(self, record: RequestRecord) -> bool:
        """A finished request within every limit; a metric that it does not have (TPOT of one token) does not count."""
        if not record.ok:
            return False
        for name, limit in self.limits.items():
            value = getattr(record, name)
            if value is not None and value * 1e3 > limit:
                return False
        return True


def peak_tokens_per_s(records: Iterable[RequestRecord]) -> float:
    """Most output tokens in any whole second counted from the first send. Chunks of unknown size share the request's
    tokens evenly."""
    times: list[float] = []
    weights: list[float] = []
    for record in records:
        if not record.chunk_times:
            continue
        chunks = len(record.chunk_times)
        times.extend(record.start + at for at in record.chunk_times)
        if len(record.chunk_tokens) == chunks:
            weights.extend(record.chunk_tokens)
        else:
            weights.extend([record.output_tokens / chunks] * chunks)
    if not times:
        return 0.0
    first = min(record.start for record in records if record.chunk_times)
    seconds = (np.asarray(times) - first).astype(np.int64)
    return float(np.bincount(seconds, weights=weights).max())


def peak_concurrency(records: Iterable[RequestRecord]) -> int:
    """Most requests in flight at one moment."""
    edges = sorted(edge for record in records if record.end > record.start for edge in _edges(record))
    peak = now = 0
    for _, step in edges:
        now += step
        peak = max(peak, now)
    return peak


def _edges(record: RequestRecord) -> tuple[tuple[float, int], tuple[float, int]]:
    return (record.start, 1), (record.end, -1)


def distribution(values: Sequence[int]) -> dict[str, float]:
    """min, mean, p50, p99, max of token counts."""
    if not values:
        return {}
    array = np.asarray(values)
    return {
        "min": int(array.min()),
        "mean": round(float(array.mean()), 2),
        "p50": float(np.percentile(array, 50)),
        "p99": float(np.percentile(array, 99)),
        "max": int(array.max()),
    }


def summarise(
    records: Sequence[RequestRecord],
    goals: Goals | None = None,
    percentiles: Sequence[float] = DEFAULT_PERCENTILES,
    metrics: Sequence[str] = METRICS,
) -> dict[str, Any]:
    """The figures of a run, under the keys of the result file.

    Throughputs count finished requests only; the duration runs from the first send to the last byte of any request.
    """
    sent = [record for record in records if record.end > record.start]
    done = [record for record in records if record.ok]
    duration = max(r.end for r in sent) - min(r.start for r in sent) if sent else 0.0
    per_second = 1.0 / duration if duration > 0 else 0.0
    inputs = sum(record.prompt_tokens for record in done)
    outputs = sum(record.output_tokens for record in done)
    figures: dict[str, Any] = {
        "duration": duration,
        "completed": len(done),
        "failed": len(records) - len(done),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": len(done) * per_second,
        "request_goodput": sum(goals.met(r) for r in records) * per_second if goals is not None else None,
        "output_throughput": outputs * per_second,
        "total_token_throughput": (inputs + outputs) * per_second,
        "max_output_tokens_per_s": peak_tokens_per_s(sent),
        "max_concurrent_requests": peak_concurrency(sent),
    }
    for metric in metrics:
        figures |= statistics(samples_ms(done, metric), metric, percentiles)
    return figures | _token_checks(done)


def _token_checks(done: Sequence[RequestRecord]) -> dict[str, Any]:
    """Where the counts came from, and whether they agree with each other and with what was asked for."""
    from_usage = sum(record.usage_output is not None for record in done)
    chunked = [record for record in done if record.chunk_tokens]
    chunks = sum(len(record.chunk_times) for record in done)
    known_cached = [record for record in done if record.cached_tokens is not None]
    cached = sum(record.cached_tokens or 0 for record in known_cached)
    prompts = sum(record.prompt_tokens for record in known_cached)
    return {
        "cached_input_tokens": cached if known_cached else None,
        "cached_share": cached / prompts if prompts else None,
        "tokens_per_chunk": sum(r.output_tokens for r in done) / chunks if chunks else None,
        "tokens_counted_by": "usage" if done and from_usage == len(done) else "chunks" if not from_usage else "mixed",
        "usage_disagrees": sum(sum(r.chunk_tokens) != r.usage_output for r in chunked if r.usage_output is not None),
        "output_length_differs": sum(r.output_tokens != r.requested_output for r in done),
        "input_length_differs": sum(
            r.requested_input > 0 and r.input_tokens is not None and r.input_tokens != r.requested_input for r in done
        ),
        "input_distribution": distribution([r.prompt_tokens for r in done]),
        "output_distribution": distribution([r.output_tokens for r in done]),
    }
