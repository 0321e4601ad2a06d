"""`tsd bench sweep`: the same work at several concurrencies or rates, or the highest of them that holds a goal."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from tsd.bench import prepare
from tsd.bench.chart_text import render
from tsd.bench.charts import pareto_chart
from tsd.bench.errors import ResultError, UsageError
from tsd.bench.metrics import Goals, percentile_name
from tsd.bench.options import ServeOptions, add_arguments, read_options
from tsd.bench.report import number
from tsd.bench.result import Result, machine_name, one_line_lists, slug
from tsd.bench.series import Series, load_key, per_gpu, per_user
from tsd.bench.serve import Session, stopping_on_signals

_LEVELS = [1, 2, 4, 8, 16, 32, 64]


def holds(result: Result, goals: Goals, percentile: float) -> bool:
    """Every request finished, and the percentile of each limited metric is within its limit."""
    if result["failed"] or not result["completed"]:
        return False
    name = percentile_name(percentile)
    return all(result[f"{name}_{metric}_ms"] <= limit for metric, limit in goals.limits.items())


def at_level(options: ServeOptions, level: float, by_rate: bool, requests_per_level: int) -> ServeOptions:
    """The options of one run. A closed loop gets `requests_per_level` sessions for each slot: several rounds."""
    if by_rate:
        return replace(options, request_rate=level)
    prompts = options.num_prompts or int(level) * requests_per_level
    return replace(options, max_concurrency=int(level), num_prompts=prompts)


class Sweep:
    """Runs levels one after the other and keeps what came of them."""

    def __init__(self, session: Session, by_rate: bool, requests_per_level: int) -> None:
        self.session, self.by_rate, self._per_level = session, by_rate, requests_per_level
        self.runs: list[Result] = []

    async def run(self, level: float) -> Result:
        """One level, with prompts that no earlier level has sent."""
        options = at_level(self.session.options, level, self.by_rate, self._per_level)
        base, self.session.options = self.session.options, options
        try:
            spec = prepare.run_specs(options, self.session.seed + 7919 * len(self.runs))[0]
            result = await self.session.run(spec)
        finally:
            self.session.options = base
        self.runs.append(result)
        return result

    async def each(self, levels: Sequence[float]) -> None:
        for level in levels:
            await self.run(level)
            if self.session.stopped:
                return

    async def search(self, goals: Goals, percentile: float, low: float, high: float, steps: int) -> float | None:
        """The highest level in [low, high] that holds, by bisection between one that does and one that does not.

        None when even the lowest does not. Latency is taken to grow with load."""
        if not holds(await self.run(low), goals, percentile):
            return None
        if self.session.stopped or holds(await self.run(high), goals, percentile):
            return high
        for _ in range(steps):
            middle = (low + high) / 2 if self.by_rate else (low + high) // 2
            if self.session.stopped or middle in (low, high):
                break
            if holds(await self.run(middle), goals, percentile):
                low = middle
            else:
                high = middle
        return low


def print_sweep(console: Console, runs: list[Result], goals: Goals | None, percentile: float) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in (
        "load",
        "output tok/s",
        "tok/s a user",
        "tok/s a GPU",
        "TTFT p50",
        "p99",
        "TPOT p50",
        "p99",
        "failed",
    ):
        table.add_column(heading, justify="right")
    if goals is not None:
        table.add_column("holds")
    for run in runs:
        keys = ("median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "p99_tpot_ms")
        cells = [
            load_key(run)[1],
            number(run["output_throughput"], 1),
            number(per_user(run), 1),
            number(per_gpu(run), 1),
        ]
        cells += [number(run.get(key)) for key in keys] + [str(run["failed"])]
        if goals is not None:
            cells.append("yes" if holds(run, goals, percentile) else "no")
        table.add_row(*cells)
    console.print(table)


def save_sweep(sweep: Sweep, options: ServeOptions, answer: float | None, goals: Goals | None) -> Path:
    """One file with all runs, which `compare` reads. Raises ResultError."""
    first = sweep.runs[0]
    name = options.result_filename
    if name is None:
        machine = options.machine or machine_name(first)
        name = f"{machine}-{slug(first['model_id'])}-{load_key(first)[0]}-sweep.json"
    path = Path(options.result_dir) / name
    value = {
        "sweep": "rate" if sweep.by_rate else "concurrency",
        "date": datetime.now(UTC).strftime("%Y%m%d-%H%M%S"),
        "model_id": first["model_id"],
        "goal": goals.limits if goals is not None else None,
        "highest_that_holds": answer,
        "runs": sweep.runs,
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.write_bytes(one_line_lists(msgspec.json.format(msgspec.json.encode(value), indent=1)) + b"\n")
        draft.replace(path)
    except OSError as error:
        raise ResultError(f"cannot write {path}: {error.strerror or error}") from None
    return path


async def _sweep(options: ServeOptions, args: argparse.Namespace, console: Console) -> int:
    goals = Goals.parse(options.goodput) if options.goodput else None
    by_rate = args.rates is not None or args.rate_range is not None
    session = Session(options, console)
    stopping_on_signals(session)
    sweep = Sweep(session, by_rate, args.requests_per_level)
    answer: float | None = None
    try:
        if args.find_highest:
            assert goals is not None
            low, high = args.rate_range or args.concurrency_range or (1.0, 64.0)
            answer = await sweep.search(goals, args.goal_percentile, low, high, args.steps)
        else:
            await sweep.each(args.rates or args.concurrencies or _LEVELS)
    finally:
        session.pool.close()
    print_sweep(console, sweep.runs, goals, args.goal_percentile)
    if len(sweep.runs) > 1:
        data = load_key(sweep.runs[0])[0]
        console.print(render(pareto_chart([Series("this sweep", sweep.runs)], data)), soft_wrap=True)
    if args.find_highest:
        unit = "requests a second" if by_rate else "at a time"
        found = f"{answer:g} {unit}" if answer is not None else "not even the lowest load holds the goal"
        console.print(f"highest load that holds the goal: [bold]{found}[/bold]", highlight=False)
    if options.save_result:
        console.print(f"saved {save_sweep(sweep, options, answer, goals)}", highlight=False, soft_wrap=True)
    failed = any(run["failed"] for run in sweep.runs) and not args.find_highest
    return 1 if failed or session.stopped or (args.find_highest and answer is None) else 0


def main(argv: Sequence[str]) -> int:
    """Exit code 0; 1 when requests failed, the sweep was cut short, or no load holds the goal."""
    parser = argparse.ArgumentParser(
        prog="tsd bench sweep",
        description="Run the same work at several loads. With --find-highest, search the highest load that holds the "
        "limits of --goodput at --goal-percentile.",
    )
    add = parser.add_argument_group("the sweep").add_argument
    add("--concurrencies", type=int, nargs="+", metavar="N", help=f"closed loop at each (default: {_LEVELS})")
    add("--rates", type=float, nargs="+", metavar="R", help="open loop at each of these requests a second")
    add("--requests-per-level", type=int, default=4, metavar="N", help="requests for each slot of a level (default 4)")
    add("--find-highest", action="store_true", help="search instead of running every level")
    add("--concurrency-range", type=int, nargs=2, metavar=("LOW", "HIGH"), help="where to search (default: 1 64)")
    add("--rate-range", type=float, nargs=2, metavar=("LOW", "HIGH"), help="where to search, as requests a second")
    add("--goal-percentile", type=float, default=99.0, metavar="P", help="percentile that must be within (default 99)")
    add("--steps", type=int, default=6, metavar="N", help="bisections at most (default 6)")
    add_arguments(parser)
    parser.epilog = None
    args = parser.parse_args(argv)
    options = read_options(args)
    if options.workload is not None or options.parallel or options.max_concurrency or options.request_rate:
        raise UsageError(
            "a sweep sets the load itself: leave out --workload, --parallel, --max-concurrency, --request-rate"
        )
    if args.find_highest and not options.goodput:
        raise UsageError("--find-highest needs limits: --goodput ttft:500 tpot:50")
    if args.rates and args.concurrencies:
        raise UsageError("--rates and --concurrencies exclude each other")
    if args.goal_percentile not in options.percentiles:
        options = replace(options, percentiles=[*options.percentiles, args.goal_percentile])
    return asyncio.run(_sweep(options, args, Console()))
