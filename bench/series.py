"""Result files as comparable series: a file is one run or a sweep; equal loads are matched across files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tsd.bench.errors import ResultError, UsageError
from tsd.bench.result import Result


@dataclass(frozen=True)
class Series:
    """The runs of one file, in the order of their load."""

    name: str
    runs: list[Result]


def read_series(path: str, name: str | None = None) -> Series:
    """Raises ResultError for a file that is neither a result nor a sweep."""
    try:
        value = msgspec.json.decode(Path(path).read_bytes())
    except OSError as error:
        raise ResultError(f"{path}: {error.strerror or error}") from None
    except msgspec.DecodeError as error:
        raise ResultError(f"{path}: not JSON ({error})") from None
    runs = value.get("runs") if isinstance(value, dict) and "sweep" in value else [value]
    if not isinstance(runs, list) or not runs or not all(_is_run(run) for run in runs):
        raise ResultError(f"{path}: not a result of a serving benchmark or a sweep")
    return Series(name or Path(path).stem, sorted(runs, key=lambda run: (str(run["workload"]), _load(run))))


def _is_run(value: Any) -> bool:
    return isinstance(value, dict) and {"output_throughput", "model_id", "workload"} <= value.keys()


def _load(run: Result) -> float:
    rate = run.get("request_rate")
    return float(rate) if isinstance(rate, int | float) else float(run.get("max_concurrency") or 0)


def load_key(run: Result) -> tuple[str, str]:
    """Runs with equal keys were given the same work: data set or workload, and pace."""
    rate = run.get("request_rate")
    pace = f"{rate:g} req/s" if isinstance(rate, int | float) else f"{run.get('max_concurrency')} at a time"
    return str(run.get("workload", "")).split("-c")[0], pace


def matched(series: list[Series]) -> list[tuple[tuple[str, str], list[Result | None]]]:
    """Loads that at least two series hold, with each series' run or None. Raises UsageError when there is none."""
    tables = [{load_key(run): run for run in one.runs} for one in series]
    keys = list(dict.fromkeys(key for table in tables for key in table))
    rows = [(key, [table.get(key) for table in tables]) for key in keys]
    rows = [row for row in rows if sum(run is not None for run in row[1]) >= 2]
    if not rows:
        loads = "; ".join(f"{one.name}: {', '.join(' '.join(load_key(run)) for run in one.runs)}" for one in series)
        raise UsageError(f"no load that two of the files have in common ({loads})")
    return rows


def latency_samples(run: Result, metric: str) -> np.ndarray:
    """Per-request samples [n, 1], milliseconds; empty when the file has none."""
    values = [value for value in run.get("samples_ms", {}).get(metric, []) if value is not None]
    return np.asarray(values, dtype=np.float64).reshape(-1, 1)


def rate_samples(run: Result) -> np.ndarray:
    """Per request [output tokens, milliseconds in flight]."""
    tokens, times = run.get("samples_tokens", []), run.get("samples_ms", {}).get("e2el", [])
    rows = [(pair[1], time) for pair, time in zip(tokens, times, strict=False) if time]
    return np.asarray(rows, dtype=np.float64).reshape(-1, 2)


def gpu_count(run: Result) -> int:
    """GPUs behind the server: what the server says, else those seen on this machine, else one."""
    gpus = run.get("gpu")
    info = run.get("server_info") or {}
    if isinstance(info.get("num_gpus"), int):
        return max(1, int(info["num_gpus"]))
    return max(1, len(gpus)) if isinstance(gpus, list) else 1


def per_user(run: Result) -> float:
    """Output tokens a second that one stream sees: 1000 / median TPOT."""
    tpot = run.get("median_tpot_ms") or 0.0
    return 1000.0 / tpot if tpot else 0.0


def per_gpu(run: Result) -> float:
    """Output tokens a second a GPU (or a machine without one)."""
    return float(run["output_throughput"]) / gpu_count(run)
