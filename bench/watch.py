"""Looks at the server from outside while a run lasts: its Prometheus text, and this machine's GPUs when it is local.

Samples once a second and keeps a bounded timeline. Every part is optional: a server without metrics gives an
empty record.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from tsd.bench.http import HttpError, Pool

_PERIOD_S = 1.0
_MOST_SAMPLES = 600
_PREFIXES = ("tsd:", "vllm:", "sglang:")
_GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "token_usage", "num_running_reqs")
_COUNTERS = (
    "prompt_tokens",
    "generation_tokens",
    "prompt_tokens_cached",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "num_retractions",
    "num_preemptions",
    "spec_decode_num_drafts",
    "spec_decode_num_draft_tokens",
    "spec_decode_num_accepted_tokens",
)
_BATCH = "iteration_tokens_total"


def parse_metrics(text: str) -> dict[str, dict[str, float]]:
    """Prometheus text → family name without its prefix → label string → value. Other lines are skipped."""
    families: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        if not line or line[0] == "#":
            continue
        name_part, _, value = line.rpartition(" ") if "{" not in line else line.partition("} ")
        name, _, labels = name_part.partition("{")
        for prefix in _PREFIXES:
            if name.startswith(prefix):
                try:
                    families.setdefault(name[len(prefix) :], {})[labels.rstrip("}")] = float(value.split()[0])
                except (ValueError, IndexError):
                    break
    return families


def _total(families: dict[str, dict[str, float]], name: str) -> float | None:
    for candidate in (name, f"{name}_total"):
        if candidate in families:
            return sum(families[candidate].values())
    return None


def _buckets(families: dict[str, dict[str, float]]) -> dict[float, float]:
    """Cumulative counts of tokens a step, by upper edge, summed over engines."""
    edges: dict[float, float] = {}
    for labels, value in families.get(f"{_BATCH}_bucket", {}).items():
        edge = labels.partition('le="')[2].partition('"')[0]
        if edge:
            edges[float(edge)] = edges.get(float(edge), 0.0) + value
    return edges


@dataclass
class ServerWatch:
    """Start with `begin`, keep `run` as a task, end with `end`; then `report` is part of the result."""

    pool: Pool
    api_key: str | None
    timeline: list[dict[str, float]] = field(default_factory=list)
    _before: dict[str, dict[str, float]] = field(default_factory=dict)
    _after: dict[str, dict[str, float]] = field(default_factory=dict)
    _gpus: Any = None
    _started: float = 0.0

    async def _scrape(self) -> dict[str, dict[str, float]]:
        try:
            async with asyncio.timeout(5.0):
                response = await self.pool.fetch("GET", "/metrics", api_key=self.api_key)
        except (HttpError, TimeoutError):
            return {}
        return parse_metrics(response.body.decode("utf-8", "replace")) if response.status == 200 else {}

    async def begin(self) -> None:
        self._started = perf_counter()
        self._before = await self._scrape()
        if self.pool.origin.host in ("127.0.0.1", "localhost", "::1"):
            self._gpus = _LocalGpus.open()

    async def run(self) -> None:
        """Samples until cancelled; stops by itself when there is nothing to see."""
        while self._before or self._gpus is not None:
            await asyncio.sleep(_PERIOD_S)
            families = await self._scrape() if self._before else {}
            sample = {"t": round(perf_counter() - self._started, 3)}
            for name in _GAUGES:
                value = _total(families, name)
                if value is not None:
                    sample[name] = value
            if self._gpus is not None:
                sample |= self._gpus.sample()
            if len(self.timeline) < _MOST_SAMPLES:
                self.timeline.append(sample)

    async def end(self) -> None:
        if self._before:
            self._after = await self._scrape()

    def report(self) -> dict[str, Any]:
        """Counter differences over the run, tokens-a-step distribution, and the timeline."""
        report: dict[str, Any] = {}
        if self._before and self._after:
            deltas = {}
            for name in _COUNTERS:
                before, after = _total(self._before, name), _total(self._after, name)
                if after is not None:
                    deltas[name] = after - (before or 0.0)
            report["server_counters"] = deltas
            hits, queries = deltas.get("prefix_cache_hits"), deltas.get("prefix_cache_queries")
            report["server_prefix_hit_rate"] = hits / queries if hits is not None and queries else None
            accepted, drafted = (
                deltas.get("spec_decode_num_accepted_tokens"),
                deltas.get("spec_decode_num_draft_tokens"),
            )
            report["spec_accept_rate"] = accepted / drafted if accepted is not None and drafted else None
            report["step_tokens_distribution"] = self._steps()
        if self._gpus is not None:
            report["gpus"] = self._gpus.describe()
        if self.timeline:
            report["timeline"] = self.timeline
        return report

    def _steps(self) -> dict[str, float]:
        """Steps by upper edge of tokens a step."""
        before, after = _buckets(self._before), _buckets(self._after)
        steps, below = {}, 0.0
        for edge in sorted(after):
            upto = after[edge] - before.get(edge, 0.0)
            if upto - below > 0:
                steps[f"{edge:g}"] = upto - below
            below = upto
        return steps


class _LocalGpus:
    """NVIDIA GPUs of this machine through NVML."""

    def __init__(self, nvml: Any, handles: list[Any]) -> None:
        self._nvml, self._handles = nvml, handles

    @classmethod
    def open(cls) -> _LocalGpus | None:
        """None where there is no driver or no NVML binding."""
        try:
            import pynvml
        except ImportError:
            return None
        try:
            pynvml.nvmlInit()
            handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        except pynvml.NVMLError:
            return None
        return cls(pynvml, handles) if handles else None

    def describe(self) -> dict[str, Any]:
        nvml = self._nvml
        cuda = nvml.nvmlSystemGetCudaDriverVersion_v2()
        return {
            "names": [str(nvml.nvmlDeviceGetName(handle)) for handle in self._handles],
            "driver": str(nvml.nvmlSystemGetDriverVersion()),
            "cuda_driver": f"{cuda // 1000}.{cuda % 1000 // 10}",
        }

    def sample(self) -> dict[str, float]:
        sample = {}
        for i, handle in enumerate(self._handles):
            sample[f"gpu{i}_util"] = self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
            sample[f"gpu{i}_mem_used"] = self._nvml.nvmlDeviceGetMemoryInfo(handle).used
        return sample
