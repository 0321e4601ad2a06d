"""`tsd bench latency`: one batch through the engine in this process, from submission to the last token."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from tsd.bench.engine_flags import add_engine_flags
from tsd.bench.errors import ResultError, UsageError
from tsd.bench.report import number

if TYPE_CHECKING:
    from tsd.bench.offline import Offline

_PERCENTILES = (10, 25, 50, 75, 90, 99)


async def measure(offline: Offline, args: argparse.Namespace) -> dict[str, Any]:
    """Keys follow `vllm bench latency` (seconds), with time to first token and time per token beside them."""
    from tsd.bench.offline import check_lengths, random_prompts

    check_lengths(offline, args.input_len, args.output_len)
    source = np.random.default_rng(args.seed)
    latencies, firsts, gaps = [], [], []
    for iteration in range(args.num_iters_warmup + args.num_iters):
        prompts = random_prompts(source, args.batch_size, args.input_len, offline.vocab_size)
        answers = [offline.submit(prompt, args.output_len) for prompt in prompts]
        await offline.finish(answers)
        if iteration < args.num_iters_warmup:
            continue
        latencies.append(max(answer.times[-1] for answer in answers) - answers[0].sent)
        firsts += [answer.times[0] - answer.sent for answer in answers]
        gaps += [(a.times[-1] - a.times[0]) / (args.output_len - 1) for a in answers if args.output_len > 1]
    return {
        "avg_latency": float(np.mean(latencies)),
        "latencies": latencies,
        "percentiles": {str(p): float(np.percentile(latencies, p)) for p in _PERCENTILES},
        "median_ttft_ms": float(np.median(firsts)) * 1e3,
        "median_tpot_ms": float(np.median(gaps)) * 1e3 if gaps else 0.0,
        "batch_size": args.batch_size,
        "input_len": args.input_len,
        "output_len": args.output_len,
        "architecture": offline.architecture,
        "dtype": offline.dtype,
        "build_s": offline.build_s,
    }


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="tsd bench latency",
        description="Time one batch of equal requests through the engine in this process, with no server between.",
    )
    parser.add_argument("--batch-size", type=int, default=1, metavar="N")
    parser.add_argument("--input-len", type=int, default=128, metavar="T")
    parser.add_argument("--output-len", type=int, default=128, metavar="T")
    parser.add_argument("--num-iters-warmup", type=int, default=1, metavar="N")
    parser.add_argument("--num-iters", type=int, default=5, metavar="N")
    parser.add_argument("--output-json", metavar="FILE", help="write the figures")
    add_engine_flags(parser)
    args = parser.parse_args(argv)
    if args.batch_size <= 0 or args.num_iters <= 0 or args.num_iters_warmup < 0:
        raise UsageError("--batch-size and --num-iters must be above zero")
    from tsd.bench.offline import engine_config, run_offline

    result = run_offline(engine_config(args), lambda offline: measure(offline, args))
    console = Console()
    shape = f"{args.batch_size} × ({args.input_len} in, {args.output_len} out)"
    median = result["percentiles"]["50"]
    console.print(
        f"[bold]{shape}[/bold]: median {number(median * 1e3)} ms, mean {number(result['avg_latency'] * 1e3)} ms, "
        f"TTFT {number(result['median_ttft_ms'])} ms, TPOT {number(result['median_tpot_ms'])} ms, "
        f"{number(args.batch_size * args.output_len / median, 1)} output tok/s",
        highlight=False,
        soft_wrap=True,
    )
    write_json(args.output_json, {**result, "model": args.model})
    return 0


def write_json(path: str | None, value: dict[str, Any]) -> None:
    """Nothing without a path. Raises ResultError."""
    if path is None:
        return
    try:
        Path(path).write_text(json.dumps(value, indent=1) + "\n")
    except OSError as error:
        raise ResultError(f"cannot write {path}: {error.strerror or error}") from None
