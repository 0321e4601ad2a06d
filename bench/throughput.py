"""`tsd bench throughput`: many requests at once through the engine in this process: tokens a second with no server."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from tsd.bench.engine_flags import add_engine_flags
from tsd.bench.errors import UsageError
from tsd.bench.latency import write_json
from tsd.bench.report import number

if TYPE_CHECKING:
    from tsd.bench.offline import Offline


async def measure(offline: Offline, args: argparse.Namespace) -> dict[str, Any]:
    """Keys follow `vllm bench throughput`. One short request runs first and is not counted."""
    from tsd.bench.offline import check_lengths, random_prompts

    check_lengths(offline, args.input_len, args.output_len)
    source = np.random.default_rng(args.seed)
    await offline.finish([offline.submit(random_prompts(source, 1, 8, offline.vocab_size)[0], 4)])
    prompts = random_prompts(source, args.num_prompts, args.input_len, offline.vocab_size)
    began = perf_counter()
    answers = [offline.submit(prompt, args.output_len) for prompt in prompts]
    await offline.finish(answers)
    elapsed = max(answer.times[-1] for answer in answers) - began
    total = args.num_prompts * (args.input_len + args.output_len)
    return {
        "elapsed_time": elapsed,
        "num_requests": args.num_prompts,
        "total_num_tokens": total,
        "requests_per_second": args.num_prompts / elapsed,
        "tokens_per_second": total / elapsed,
        "output_tokens_per_second": args.num_prompts * args.output_len / elapsed,
        "input_len": args.input_len,
        "output_len": args.output_len,
        "architecture": offline.architecture,
        "dtype": offline.dtype,
        "build_s": offline.build_s,
    }


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="tsd bench throughput",
        description="Send many requests at once through the engine in this process, with no server between.",
    )
    parser.add_argument("--num-prompts", type=int, default=64, metavar="N")
    parser.add_argument("--input-len", type=int, default=128, metavar="T")
    parser.add_argument("--output-len", type=int, default=128, metavar="T")
    parser.add_argument("--output-json", metavar="FILE", help="write the figures")
    add_engine_flags(parser)
    args = parser.parse_args(argv)
    if args.num_prompts <= 0:
        raise UsageError("--num-prompts must be above zero")
    from tsd.bench.offline import engine_config, run_offline

    result = run_offline(engine_config(args), lambda offline: measure(offline, args))
    Console().print(
        f"[bold]{args.num_prompts} × ({args.input_len} in, {args.output_len} out)[/bold]: "
        f"{number(result['output_tokens_per_second'], 1)} output tok/s, {number(result['tokens_per_second'], 1)} "
        f"total tok/s, {number(result['requests_per_second'])} req/s in {number(result['elapsed_time'])} s",
        highlight=False,
        soft_wrap=True,
    )
    write_json(args.output_json, {**result, "model": args.model})
    return 0
