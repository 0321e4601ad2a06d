"""The flags of `tsd bench serve`, read into frozen options.

Names and meanings follow `vllm bench serve` where both have one.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from typing import Any

from tsd.bench.arrivals import Ramp
from tsd.bench.datasets import NAMES
from tsd.bench.errors import UsageError
from tsd.bench.workloads import WORKLOADS

_EPILOG = """examples:
  tsd bench --workload solo                          one stream, 128 tokens in, 256 out
  tsd bench --workload all --save-result             the four fixed workloads, kept under bench/results/
  tsd bench --base-url http://host:8000 --dataset-name random --random-input-len 512 \\
            --num-prompts 100 --request-rate 4       an open loop: 4 requests a second, Poisson
  tsd bench --dataset-name mooncake --dataset-path trace.jsonl --trace-scale 2
"""


@dataclass(frozen=True)
class ServeOptions:
    """One invocation; a run takes its shape from `workload` or else from the data-set fields."""

    base_url: str
    endpoint: str
    backend: str
    model: str | None
    api_key: str | None
    insecure: bool
    workload: str | None
    dataset_name: str
    dataset_path: str | None
    num_prompts: int | None
    input_len: int | None
    output_len: int | None
    range_ratio: float
    prefix_len: int | None
    turns: int | None
    turn_wait_s: float
    trace_scale: float
    use_timestamps: bool
    max_input_len: int | None
    prompt_format: str | None
    vocab_size: int | None
    request_rate: float | None
    ramp: Ramp | None
    burstiness: float
    max_concurrency: int | None
    parallel: list[int] | None
    num_warmups: int
    workers: int | None
    seed: int | None
    ignore_eos: bool
    temperature: float
    chunk_usage: str
    extra_body: dict[str, Any]
    percentile_metrics: list[str]
    percentiles: list[float]
    goodput: list[str]
    ready_timeout_s: float
    idle_timeout_s: float
    request_timeout_s: float
    watch_server: bool
    save_result: bool
    save_detailed: bool
    result_dir: str
    result_filename: str | None
    machine: str | None
    metadata: dict[str, str]
    progress: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """All flags of `serve`; `sweep` shares them."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    add = parser.add_argument_group("which server").add_argument
    add("--base-url", default="http://127.0.0.1:8000", metavar="URL", help="server to measure (default: %(default)s)")
    add("--model", metavar="NAME", help="model name to ask for (default: the first that the server lists)")
    add("--backend", choices=("openai", "openai-chat", "vllm"), default="openai", help="completions (default) or chat")
    add("--endpoint", metavar="PATH", help="route to call (default: /v1/completions, or /v1/chat/completions for chat)")
    add("--api-key", metavar="KEY", help="sent as a bearer token")
    add("--insecure", action="store_true", help="accept any TLS certificate")
    add("--extra-body", type=json.loads, default={}, metavar="JSON", help="fields added to every request")
    add(
        "--ready-check-timeout-sec",
        type=float,
        default=0.0,
        metavar="S",
        help="wait so long for the server to be ready",
    )

    add = parser.add_argument_group("what to send").add_argument
    add(
        "--workload",
        choices=(*WORKLOADS, "all"),
        metavar="NAME",
        help="a fixed workload: " + "; ".join(f"{w.name}: {w.summary}" for w in WORKLOADS.values()) + "; all",
    )
    add("--dataset-name", choices=NAMES, default="random", help="where prompts come from (default: %(default)s)")
    add("--dataset-path", metavar="FILE", help="file of mooncake, azure, sharegpt or custom")
    add("--num-prompts", type=int, metavar="N", help="requests, or sessions of a multi-turn data set (default: 100)")
    add(
        "--random-input-len",
        "--input-len",
        dest="input_len",
        type=int,
        metavar="T",
        help="prompt tokens (new ones a turn)",
    )
    add("--random-output-len", "--output-len", dest="output_len", type=int, metavar="T", help="tokens to generate")
    add("--random-range-ratio", type=float, default=0.0, metavar="R", help="lengths vary by ±R of themselves")
    add(
        "--random-prefix-len",
        "--prefix-len",
        dest="prefix_len",
        type=int,
        metavar="T",
        help="tokens shared by all prompts",
    )
    add("--turns", type=int, metavar="N", help="turns of a session")
    add("--turn-wait-sec", type=float, default=0.0, metavar="S", help="pause between the turns of a session")
    add("--max-input-len", type=int, metavar="T", help="leave out longer prompts of a trace")
    add("--prompt-format", choices=("ids", "text"), help="send token ids (default for completions) or words")
    add("--vocab-size", type=int, metavar="N", help="draw random ids below this (default: asked from the server)")
    add("--seed", type=int, metavar="N", help="same prompts again (default: fresh ones, so that no cache knows them)")
    add(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="generate the full length (default: on)",
    )
    add("--temperature", type=float, default=0.0, metavar="X", help="0 is greedy (default)")

    add = parser.add_argument_group("when to send").add_argument
    add("--max-concurrency", type=int, metavar="N", help="closed loop: so many at a time; with a rate: a cap")
    add("--parallel", type=int, nargs="+", metavar="N", help="one closed-loop run at each of these concurrencies")
    add("--request-rate", type=float, metavar="R", help="open loop: requests a second; inf sends all at once")
    add("--burstiness", type=float, default=1.0, metavar="B", help="gamma shape of the gaps: 1 Poisson, below burstier")
    add("--ramp-up-strategy", choices=("linear", "exponential"), help="change the rate over the run")
    add("--ramp-up-start-rps", type=float, metavar="R", help="rate at the start of the ramp")
    add("--ramp-up-end-rps", type=float, metavar="R", help="rate at its end")
    add("--trace-scale", type=float, default=1.0, metavar="X", help="replay a trace X times as fast")
    add("--ignore-timestamps", action="store_true", help="take a trace's lengths but not its times")
    add("--num-warmups", type=int, default=0, metavar="N", help="requests of other prompts sent first, not counted")
    add("--num-workers", "--workers", dest="workers", type=int, metavar="N", help="client processes (default: by load)")
    add("--idle-timeout-sec", type=float, default=300.0, metavar="S", help="a request fails after so long a silence")
    add("--request-timeout-sec", type=float, default=21600.0, metavar="S", help="a request fails when it takes longer")

    add = parser.add_argument_group("what to report").add_argument
    add(
        "--percentile-metrics",
        default="ttft,tpot,itl,e2el",
        metavar="LIST",
        help="of ttft,tpot,itl,e2el (default: all)",
    )
    add("--metric-percentiles", default="50,90,95,99", metavar="LIST", help="percentiles (default: %(default)s)")
    add("--goodput", nargs="+", default=[], metavar="M:MS", help="limits that a good request holds: ttft:500 tpot:50")
    add(
        "--chunk-usage",
        choices=("auto", "on", "off"),
        default="auto",
        help="ask for token counts on every chunk; auto: where the server can, except in the fixed workloads, "
        "which were measured without (it costs the server)",
    )
    add("--no-server-watch", action="store_true", help="do not read the server's /metrics and GPU during the run")
    add("--save-result", action="store_true", help="write a JSON file a run")
    add("--save-detailed", action="store_true", help="with every sample in it, and the texts")
    add("--result-dir", default="bench/results", metavar="DIR", help="where (default: %(default)s)")
    add("--result-filename", metavar="FILE", help="its name (default: <machine>-<model>-<workload>.json)")
    add("--machine", metavar="NAME", help="machine name in the file's name (default: from the GPU, or cpu)")
    add("--metadata", nargs="*", default=[], metavar="K=V", help="facts to keep in the result")
    add("--disable-tqdm", "--no-progress", dest="no_progress", action="store_true", help="no progress display")


def _numbers(text: str, flag: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise UsageError(f"{flag} {text}: not a list of numbers") from None


def _ramp(args: argparse.Namespace) -> Ramp | None:
    if args.ramp_up_strategy is None:
        return None
    start, end = args.ramp_up_start_rps, args.ramp_up_end_rps
    if start is None or end is None or start <= 0 or end <= 0:
        raise UsageError("--ramp-up-strategy needs --ramp-up-start-rps and --ramp-up-end-rps, both above zero")
    if args.request_rate is not None:
        raise UsageError("--request-rate and --ramp-up-strategy exclude each other")
    return Ramp(args.ramp_up_strategy, start, end)


def read_options(args: argparse.Namespace) -> ServeOptions:
    """Checks that need no server. Raises UsageError."""
    positive = ("num_prompts", "input_len", "output_len", "turns", "max_concurrency", "workers", "vocab_size")
    for name in positive:
        value = getattr(args, name)
        if value is not None and value <= 0:
            raise UsageError(f"--{name.replace('_', '-')} must be above zero, not {value}")
    for name in ("burstiness", "trace_scale", "idle_timeout_sec", "request_timeout_sec"):
        if not getattr(args, name) > 0:
            raise UsageError(f"--{name.replace('_', '-')} must be above zero")
    if args.request_rate is not None and not args.request_rate > 0:
        raise UsageError("--request-rate must be above zero")
    if not 0 <= args.random_range_ratio < 1:
        raise UsageError("--random-range-ratio must be in [0, 1)")
    if not isinstance(args.extra_body, dict):
        raise UsageError("--extra-body must be a JSON object")
    metrics = [name.strip() for name in args.percentile_metrics.split(",") if name.strip()]
    unknown = [name for name in metrics if name not in ("ttft", "tpot", "itl", "e2el")]
    if unknown:
        raise UsageError(f"--percentile-metrics: no metric {unknown[0]!r}; there are ttft, tpot, itl, e2el")
    percentiles = _numbers(args.metric_percentiles, "--metric-percentiles")
    if any(not 0 <= value <= 100 for value in percentiles):
        raise UsageError("--metric-percentiles must lie in 0 to 100")
    metadata = dict(pair.split("=", 1) if "=" in pair else (pair, "") for pair in args.metadata)
    chat = args.backend == "openai-chat" or (args.endpoint or "").endswith("/chat/completions")
    return ServeOptions(
        base_url=args.base_url,
        endpoint=args.endpoint or ("/v1/chat/completions" if chat else "/v1/completions"),
        backend="openai-chat" if chat else args.backend,
        model=args.model,
        api_key=args.api_key,
        insecure=args.insecure,
        workload=args.workload,
        dataset_name=args.dataset_name,
        dataset_path=args.dataset_path,
        num_prompts=args.num_prompts,
        input_len=args.input_len,
        output_len=args.output_len,
        range_ratio=args.random_range_ratio,
        prefix_len=args.prefix_len,
        turns=args.turns,
        turn_wait_s=args.turn_wait_sec,
        trace_scale=args.trace_scale,
        use_timestamps=not args.ignore_timestamps,
        max_input_len=args.max_input_len,
        prompt_format=args.prompt_format,
        vocab_size=args.vocab_size,
        request_rate=args.request_rate,
        ramp=_ramp(args),
        burstiness=args.burstiness,
        max_concurrency=args.max_concurrency,
        parallel=args.parallel,
        num_warmups=args.num_warmups,
        workers=args.workers,
        seed=args.seed,
        ignore_eos=args.ignore_eos,
        temperature=args.temperature,
        chunk_usage=args.chunk_usage,
        extra_body=args.extra_body,
        percentile_metrics=metrics,
        percentiles=percentiles,
        goodput=args.goodput,
        ready_timeout_s=args.ready_check_timeout_sec,
        idle_timeout_s=args.idle_timeout_sec,
        request_timeout_s=args.request_timeout_sec,
        watch_server=not args.no_server_watch,
        save_result=args.save_result or args.save_detailed,
        save_detailed=args.save_detailed,
        result_dir=args.result_dir,
        result_filename=args.result_filename,
        machine=args.machine,
        metadata=metadata,
        progress=not args.no_progress,
    )
