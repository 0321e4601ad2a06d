"""Figures in Prometheus' words: names are `tsd:` with vLLM's suffixes. Engine figures come from their heartbeats."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from tsd.api.figures import FrontFigures
from tsd.api.routing import Fleet


def exposition(figures: FrontFigures, fleet: Fleet, model_name: str) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Families([*_front(figures, model_name), *_engines(fleet, model_name)]))
    return generate_latest(registry)


class _Families(Collector):
    def __init__(self, families: list[Any]) -> None:
        self._families = families

    def describe(self) -> list[Any]:
        return []

    def collect(self) -> list[Any]:
        return self._families


def _front(figures: FrontFigures, model: str) -> Iterator[Any]:
    names, base = ["model_name"], [model]
    yield _counter(
        "request_success",
        "Requests by how they ended",
        ["model_name", "finished_reason"],
        [([model, reason], count) for reason, count in figures.finished_by.items()],
    )
    yield _counter("prompt_tokens", "Prompt tokens of requests that ran", names, [(base, figures.prompt_tokens)])
    yield _counter("generation_tokens", "Tokens generated", names, [(base, figures.generation_tokens)])
    yield _counter("prompt_tokens_cached", "Prompt tokens found in a cache", names, [(base, figures.cached_tokens)])
    yield _counter(
        "http_requests",
        "HTTP requests",
        ["route", "status"],
        [([route, str(status)], count) for route, status, count in figures.http],
    )
    for name, histogram in figures.histograms.items():
        family = HistogramMetricFamily(f"tsd:{name}", name.replace("_", " "), labels=names)
        family.add_metric(base, buckets=histogram.buckets(), sum_value=histogram.total)
        yield family


_BEAT_COUNTERS = {
    "prefix_cache_queries": "Prompt tokens looked up in the prefix cache",
    "prefix_cache_hits": "Prompt tokens found in the prefix cache",
    "num_retractions": "Requests put back because memory ran out",
    "held_steps": "Steps that decoded while prompts were held back",
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
