"""What is counted, and how it is exposed: Prometheus text, rolling latency windows, one JSON line a request.

Names are `tsd:` with vLLM's suffixes. Hot counters are plain Python numbers; they become Prometheus families only
when `/metrics` is read. Engine counters come from their heartbeats.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from itertools import accumulate
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from tsd.api.errors import ApiError

if TYPE_CHECKING:
    from tsd.api.routing import Fleet
    from tsd.api.sequence import Sequence
    from tsd.api.tracing import Tracer

request_log = logging.getLogger("tsd.api.requests")

_SECONDS = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
    160.0,
)
_GAPS = (
    0.0005,
    0.001,
    0.0015,
    0.002,
    0.003,
    0.004,
    0.006,
    0.008,
    0.01,
    0.015,
    0.02,
    0.03,
    0.05,
    0.075,
    0.1,
    0.2,
    0.5,
    1.0,
    2.5,
)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000)
WINDOW_S = 60.0
WINDOW_MAX = 20_000


class Histogram:
    """Counts per bucket. `observe` is some 200 ns."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def buckets(self) -> list[tuple[str, float]]:
        bounds = [*(f"{bound:g}" for bound in self.bounds), "+Inf"]
        return list(zip(bounds, map(float, accumulate(self.counts)), strict=True))


class Window:
    """Values of the last WINDOW_S seconds, at most WINDOW_MAX of them."""

    def __init__(self) -> None:
        self._values: deque[tuple[float, float]] = deque(maxlen=WINDOW_MAX)

    def add(self, now: float, value: float) -> None:
        self._values.append((now, value))

    def percentiles(self, now: float) -> dict[str, float] | None:
        values = self._values
        while values and values[0][0] < now - WINDOW_S:
            values.popleft()
        if not values:
            return None
        ordered = sorted(value for _, value in values)
        last = len(ordered) - 1
        return {name: ordered[round(share * last)] for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))}


class Metrics(Collector):
    """One per front."""

    def __init__(self, model_name: str) -> None:
        self.model_name = model_name
        self.fleet: Fleet | None = None
        self.log_requests = True
        self.tracer: Tracer | None = None
        self.requests = 0
        self.streams_open = 0
        self.finished_by: Counter[str] = Counter()
        self.http: Counter[tuple[str, int]] = Counter()
        self.prompt_tokens = self.generation_tokens = self.cached_tokens = self.retractions = 0
        self.histograms = {
            "time_to_first_token_seconds": Histogram(_SECONDS),
            "inter_token_latency_seconds": Histogram(_GAPS),
            "request_time_per_output_token_seconds": Histogram(_GAPS),
            "e2e_request_latency_seconds": Histogram(_SECONDS),
            "request_queue_time_seconds": Histogram(_SECONDS),
            "request_prefill_time_seconds": Histogram(_SECONDS),
            "request_decode_time_seconds": Histogram(_SECONDS),
            "request_prompt_tokens": Histogram(_TOKENS),
            "request_generation_tokens": Histogram(_TOKENS),
        }
        self._gaps = self.histograms["inter_token_latency_seconds"]
        self.windows = {name: Window() for name in ("ttft_ms", "tpot_ms", "queue_ms", "e2e_ms")}
        self._registry = CollectorRegistry()
        self._registry.register(self)

    # What happens, as it happens.

    def on_tokens(self, sequence: Sequence, count: int, now: float) -> None:
        """Hot: once a step and sequence."""
        if sequence.first_token == 0.0:
            sequence.first_token = now
            wait = now - sequence.arrived
            self.histograms["time_to_first_token_seconds"].observe(wait)
            self.windows["ttft_ms"].add(now, wait * 1e3)
        else:
            self._gaps.observe((now - sequence.last_token) / count, count)
        sequence.last_token = now

    def on_ended(self, sequence: Sequence) -> None:
        assert sequence.ending is not None
        self._count(sequence, sequence.ending.reason)

    def on_failed(self, sequence: Sequence, error: ApiError) -> None:
        refused = error.status in (400, 429, 503)
        self._count(sequence, "refused" if refused else "error", error)

    def on_aborted(self, sequence: Sequence) -> None:
        self._count(sequence, "abort")

    def latency(self) -> dict[str, Any]:
        now = monotonic()
        return {"window_s": WINDOW_S, **{name: window.percentiles(now) for name, window in self.windows.items()}}

    def _count(self, sequence: Sequence, reason: str, error: ApiError | None = None) -> None:
        now = monotonic()
        self.finished_by[reason] += 1
        prompt, output = len(sequence.prompt), sequence.count
        total = now - sequence.arrived if sequence.arrived else 0.0
        if output:
            self.prompt_tokens += prompt
            self.generation_tokens += output
            self.cached_tokens += sequence.cached_tokens
        done = sequence.finished
        waited = done.queue_s if done is not None else max(0.0, sequence.started - sequence.arrived)
        decode = sequence.last_token - sequence.first_token
        if done is not None:
            self.retractions += done.retractions
        if output and reason in ("stop", "length", "tool_calls"):
            observe = self.histograms
            observe["e2e_request_latency_seconds"].observe(total)
            observe["request_queue_time_seconds"].observe(waited)
            observe["request_prefill_time_seconds"].observe(max(0.0, sequence.first_token - sequence.started))
            observe["request_decode_time_seconds"].observe(decode)
            observe["request_prompt_tokens"].observe(prompt)
            observe["request_generation_tokens"].observe(output)
            self.windows["e2e_ms"].add(now, total * 1e3)
            self.windows["queue_ms"].add(now, waited * 1e3)
            if output > 1:
                observe["request_time_per_output_token_seconds"].observe(decode / (output - 1))
                self.windows["tpot_ms"].add(now, decode / (output - 1) * 1e3)
        if self.tracer is not None:
            self.tracer.record(sequence, reason, now)
        if self.log_requests and request_log.isEnabledFor(logging.INFO):
            request_log.info("%s", _line(sequence, reason, total, waited, decode, error))

    # Exposition.

    def exposition(self) -> bytes:
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Any]:
        return []

    def collect(self) -> Iterator[Any]:
        names = ["model_name"]
        base = [self.model_name]
        yield _counter(
            "request_success",
            "Requests by how they ended",
            ["model_name", "finished_reason"],
            [([self.model_name, reason], count) for reason, count in self.finished_by.items()],
        )
        yield _counter("prompt_tokens", "Prompt tokens of requests that ran", names, [(base, self.prompt_tokens)])
        yield _counter("generation_tokens", "Tokens generated", names, [(base, self.generation_tokens)])
        yield _counter("prompt_tokens_cached", "Prompt tokens found in a cache", names, [(base, self.cached_tokens)])
        yield _counter(
            "http_requests",
            "HTTP requests",
            ["route", "status"],
            [([route, str(status)], count) for (route, status), count in self.http.items()],
        )
        for name, histogram in self.histograms.items():
            family = HistogramMetricFamily(f"tsd:{name}", name.replace("_", " "), labels=names)
            family.add_metric(base, buckets=histogram.buckets(), sum_value=histogram.total)
            yield family
        if self.fleet is not None:
            yield from _engines(self.fleet, self.model_name)


_BEAT_COUNTERS = {
    "prefix_cache_queries": "Prompt tokens looked up in the prefix cache",
    "prefix_cache_hits": "Prompt tokens found in the prefix cache",
    "num_retractions": "Requests put back because memory ran out",
    "spec_decode_num_drafts": "Draft rounds",
    "spec_decode_num_draft_tokens": "Drafted tokens",
    "spec_decode_num_accepted_tokens": "Drafted tokens that were kept",
    "compilations_after_ready": "Kernels compiled after the engine was ready",
}


def _engines(fleet: Fleet, model: str) -> Iterator[Any]:
    labels = ["model_name", "engine"]
    up, running, waiting, usage, start = (
        GaugeMetricFamily(f"tsd:{name}", text, labels=labels)
        for name, text in (
            ("engine_up", "1 while the engine answers"),
            ("num_requests_running", "Requests in the batch"),
            ("num_requests_waiting", "Requests in the queue"),
            ("kv_cache_usage_perc", "Share of KV pages in use, 0 to 1"),
            ("startup_time_seconds", "Launch to ready"),
        )
    )
    info = InfoMetricFamily("tsd:cache_config", "Sizes of the KV cache", labels=labels)
    counters = {name: CounterMetricFamily(f"tsd:{name}", text, labels=labels) for name, text in _BEAT_COUNTERS.items()}
    steps = HistogramMetricFamily("tsd:iteration_tokens_total", "Tokens of a step", labels=labels)
    others: dict[str, GaugeMetricFamily] = {}
    for engine in fleet.engines:
        label = [model, str(engine.engine)]
        alive = engine.state == "ready"
        up.add_metric(label, float(alive))
        beat = engine.beat
        running.add_metric(label, beat.running if beat and alive else 0)
        waiting.add_metric(label, beat.waiting if beat and alive else 0)
        stats = dict(beat.stats) if beat else {}
        usage.add_metric(label, stats.pop("kv_cache_usage_perc", 0.0) if alive else 0.0)
        for name, family in counters.items():
            if name in stats:
                family.add_metric(label, stats.pop(name))
        _step_tokens(steps, label, stats)
        for name, value in stats.items():
            if name.isidentifier():
                if name not in others:
                    others[name] = GaugeMetricFamily(f"tsd:engine_{name}", "From the engine's heartbeat", labels=labels)
                others[name].add_metric(label, value)
        if engine.ready is not None:
            start.add_metric(label, engine.ready.startup_s)
            facts = engine.ready
            info.add_metric(
                label,
                {
                    "page_size": str(facts.page_size),
                    "num_pages": str(facts.num_pages),
                    "dtype": facts.dtype,
                    "device": facts.device,
                    "max_model_len": str(facts.max_model_len),
                },
            )
    yield from (up, running, waiting, usage, start, info, steps, *counters.values(), *others.values())


def _step_tokens(family: HistogramMetricFamily, label: list[str], stats: dict[str, float]) -> None:
    """The histogram that a heartbeat holds as `iteration_tokens_total/<le>` counts, smallest bucket first."""
    prefix = "iteration_tokens_total/"
    total = stats.get(f"{prefix}sum")
    edges = [name for name in stats if name.startswith(prefix) and name != f"{prefix}sum"]
    if total is None or not edges:
        return
    counts = accumulate(stats[name] for name in edges)
    buckets = [(name.removeprefix(prefix), count) for name, count in zip(edges, counts, strict=True)]
    family.add_metric(label, buckets=buckets, sum_value=total)


def _counter(name: str, text: str, labels: list[str], values: list[tuple[list[str], float]]) -> CounterMetricFamily:
    family = CounterMetricFamily(f"tsd:{name}", text, labels=labels)
    for label, value in values:
        family.add_metric(label, value)
    return family


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)


def _line(sequence: Sequence, reason: str, total: float, waited: float, decode: float, error: ApiError | None) -> str:
    done = sequence.finished
    prompt, output = len(sequence.prompt), sequence.count
    line = {
        "request": sequence.job.public_id,
        "choice": sequence.index,
        "route": sequence.job.route,
        "engine": sequence.engine.engine if sequence.engine is not None else None,
        "prompt_tokens": prompt,
        "cached_tokens": sequence.cached_tokens,
        "output_tokens": output,
        "hit_rate": round(sequence.cached_tokens / prompt, 4) if prompt else 0.0,
        "queue_ms": _ms(waited),
        "prefill_ms": _ms(max(0.0, sequence.first_token - sequence.started)) if sequence.first_token else None,
        "ttft_ms": _ms(sequence.first_token - sequence.arrived) if sequence.first_token else None,
        "total_ms": _ms(total),
        "retractions": done.retractions if done else 0,
        "retracted_ms": _ms(done.retracted_s) if done else 0.0,
        "decode_tok_s": round((output - 1) / decode, 2) if output > 1 and decode > 0 else None,
        "finish_reason": reason,
    }
    if sequence.job.trace is not None:
        line["trace_id"] = sequence.job.trace.trace_id
    if error is not None:
        line["error"] = error.code or error.type
    return msgspec.json.encode(line).decode()
