"""The result file: one JSON object a run, its keys, its name, and reading it back."""

from __future__ import annotations

import math
import os
import platform
import re
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from tsd.bench.coordinator import Pace, RunOutcome
from tsd.bench.errors import ResultError
from tsd.bench.options import ServeOptions
from tsd.bench.plan import Plan, RequestShape
from tsd.bench.prepare import RunSpec
from tsd.bench.server import ServerFacts

Result = dict[str, Any]


def describe_run(
    options: ServeOptions,
    spec: RunSpec,
    plan: Plan,
    shape: RequestShape,
    pace: Pace,
    facts: ServerFacts,
    outcome: RunOutcome,
    seed: int,
    vocabulary_source: str,
) -> Result:
    """What a reader needs in order to believe and repeat the figures."""
    rate: object = options.request_rate if options.request_rate not in (None, math.inf) else "inf"
    if options.ramp is not None:
        ramp = options.ramp
        rate = {"ramp": ramp.strategy, "start_rps": ramp.start_rps, "end_rps": ramp.end_rps}
    elif pace.is_open and options.request_rate is None:
        rate = {"trace": options.dataset_path, "scale": options.trace_scale}
    info = facts.info
    return {
        "date": datetime.now(UTC).strftime("%Y%m%d-%H%M%S"),
        "backend": options.backend,
        "endpoint": options.endpoint,
        "base_url": options.base_url,
        "model_id": facts.model,
        "workload": spec.name,
        "dataset": spec.dataset_name,
        "dataset_options": msgspec.to_builtins(spec.data),
        "num_prompts": plan.num_requests,
        "num_sessions": len(plan.sessions),
        "request_rate": rate,
        "burstiness": options.burstiness,
        "max_concurrency": pace.slots,
        "seed": seed,
        "prompt_kind": shape.kind,
        "random_ids_from": vocabulary_source,
        "history": shape.history,
        "parameters": shape.parameters,
        "goodput_limits": options.goodput,
        "stopped": outcome.stopped or None,
        "client": {
            "command": shlex.join(["tsd", "bench", *sys.argv[2:]]) if sys.argv[1:2] == ["bench"] else None,
            "workers": outcome.workers,
            "max_loop_lag_ms": round(outcome.max_lag_ms, 3),
            "loop_lags_over_5ms": outcome.lags_over_5ms,
            "python": platform.python_version(),
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
        },
        "engine_version": facts.version,
        "commit": info.get("commit"),
        "gpu": info.get("gpu"),
        "driver": info.get("driver"),
        "cuda": info.get("cuda"),
        "launch_command": info.get("launch_command") or info.get("command"),
        "server_info": info,
        "model_info": facts.model_info,
        "metadata": options.metadata,
    }


def detailed(outcome: RunOutcome) -> Result:
    """Every sample, request by request, in seconds."""
    records = outcome.records
    return {
        "input_lens": [record.prompt_tokens for record in records],
        "output_lens": [record.output_tokens for record in records],
        "ttfts": [record.ttft for record in records],
        "tpots": [record.tpot for record in records],
        "itls": [record.itls for record in records],
        "chunk_tokens": [record.chunk_tokens for record in records],
        "latencies": [record.e2el for record in records],
        "start_times": [record.start - outcome.started if record.start else None for record in records],
        "cached_lens": [record.cached_tokens for record in records],
        "sessions": [[record.session, record.turn] for record in records],
        "errors": [record.error for record in records],
        "generated_texts": [record.text or "" for record in records],
    }


def samples(outcome: RunOutcome) -> Result:
    """Per-request latencies in milliseconds, rounded to a microsecond: enough to compare runs by bootstrap."""

    def ms(value: float | None) -> float | None:
        return None if value is None else round(value * 1e3, 3)

    done = [record for record in outcome.records if record.ok]
    return {
        "samples_ms": {
            "ttft": [ms(record.ttft) for record in done],
            "tpot": [ms(record.tpot) for record in done],
            "e2el": [ms(record.e2el) for record in done],
        },
        "samples_tokens": [[record.prompt_tokens, record.output_tokens] for record in done],
    }


def slug(text: str) -> str:
    """A name for files: the last part of a path, lower case, without an extension of weights."""
    name = re.split(r"[\\/]", text.rstrip("\\/"))[-1].lower()
    name = re.sub(r"\.(gguf|safetensors)$", "", name)
    name = re.sub(r"[-_.](i?q\d\w*|bf16|f16|f32|fp8|fp16)$", "", name)
    name = re.sub(r"[-_.](instruct|chat|base)(?=$|[-_.])", "", name)
    return re.sub(r"[^a-z0-9.]+", "-", name).strip("-") or "model"


def machine_name(result: Result) -> str:
    """`h200` for an NVIDIA H200, `cpu` where no GPU is known."""
    names = result.get("gpu") or (result.get("server_watch") or {}).get("gpus", {}).get("names")
    name = names[0] if isinstance(names, list) and names else names
    if isinstance(name, dict):
        name = name.get("name")
    if not isinstance(name, str) or not name:
        return "cpu"
    words = [word for word in re.split(r"[\s-]+", name.lower()) if word not in ("nvidia", "geforce", "rtx", "tesla")]
    return slug(words[0]) if words else "gpu"


def save(result: Result, options: ServeOptions) -> Path:
    """Write atomically and return the path. Raises ResultError."""
    name = options.result_filename
    if name is None:
        machine = options.machine or machine_name(result)
        name = f"{machine}-{slug(result['model_id'])}-{result['workload']}.json"
    elif options.workload == "all" or options.parallel:
        stem, dot, end = name.rpartition(".")
        name = f"{stem}-{result['workload']}.{end}" if dot else f"{name}-{result['workload']}"
    path = Path(options.result_dir) / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        text = msgspec.json.format(msgspec.json.encode(result), indent=1)
        draft.write_bytes(one_line_lists(text) + b"\n")
        draft.replace(path)
    except OSError as error:
        raise ResultError(f"cannot write {path}: {error.strerror or error}") from None
    return path


def one_line_lists(text: bytes) -> bytes:
    """JSON with lists of plain values on one line: thousands of samples should not be thousands of lines."""
    flat = rb"\[\s*((?:[^\[\]{}\"]|\"[^\"\\]*\")*?)\s*\]"
    return re.sub(flat, lambda match: b"[" + re.sub(rb"\s*\n\s*", b" ", match[1]) + b"]", text)


def load(path: str | Path) -> Result:
    """A result file as a dict. Raises ResultError for anything that is not one."""
    try:
        value = msgspec.json.decode(Path(path).read_bytes())
    except OSError as error:
        raise ResultError(f"{path}: {error.strerror or error}") from None
    except msgspec.DecodeError as error:
        raise ResultError(f"{path}: not JSON ({error})") from None
    if not isinstance(value, dict) or "output_throughput" not in value or "model_id" not in value:
        raise ResultError(f"{path}: not a result of a serving benchmark")
    return value
