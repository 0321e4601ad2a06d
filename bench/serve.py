"""`tsd bench serve`: measure a running server, from the ready check to the saved result."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from tsd.bench import prepare
from tsd.bench.coordinator import Coordinator, Pace, RunOutcome
from tsd.bench.errors import UsageError
from tsd.bench.http import Origin, Pool
from tsd.bench.load import tokenize
from tsd.bench.metrics import Goals, summarise
from tsd.bench.options import ServeOptions, add_arguments, read_options
from tsd.bench.plan import Plan, RequestShape
from tsd.bench.progress import ProgressView
from tsd.bench.report import print_result
from tsd.bench.result import Result, describe_run, detailed, samples, save
from tsd.bench.server import ServerFacts, find_server, try_request, vocabulary_of
from tsd.bench.watch import ServerWatch


class Session:
    """One invocation against one server: it is asked about itself once, then each run follows."""

    def __init__(self, options: ServeOptions, console: Console) -> None:
        self.options, self.console = options, console
        try:
            self.origin = Origin.parse(options.base_url)
        except ValueError as error:
            raise UsageError(f"--base-url: {error}") from None
        self.pool = Pool(self.origin, insecure=options.insecure)
        self.goals = Goals.parse(options.goodput) if options.goodput else None
        self.seed = options.seed if options.seed is not None else int(time.time())
        self.facts: ServerFacts | None = None
        self.stopped = ""
        self._running: Coordinator | None = None

    def stop(self, why: str) -> None:
        """End the run under way, and start no other."""
        self.stopped = why
        if self._running is not None:
            self._running.stop(why)

    async def run(self, spec: prepare.RunSpec) -> Result:
        """One run: prepared, warmed up, measured, summarised."""
        options = self.options
        kind = prepare.prompt_kind(spec, options)
        if self.facts is None:
            self.facts = await find_server(self.pool, options.model, options.api_key, options.ready_timeout_s)
        facts = self.facts
        vocabulary = vocabulary_of(facts, options.vocab_size)
        plan = prepare.build_plan(spec, kind, vocabulary)
        shape = prepare.first_shape(options, facts, kind, vocabulary)
        features = await try_request(self.pool, shape, vocabulary, facts)
        history = prepare.history_mode(plan, features, await self._can_tokenize())
        shape = RequestShape(
            **{field: getattr(shape, field) for field in shape.__struct_fields__}
            | {
                "parameters": prepare.parameters(options, spec, features, history),
                "history": history,
                "keep_text": options.save_detailed,
            }
        )
        pace = prepare.pace_of(plan, spec, options)
        self._announce(spec, plan, pace, history, vocabulary.source if kind == "ids" else "")
        if options.num_warmups:
            warm = prepare.warmup_plan(options.num_warmups, plan, vocabulary, spec.data.seed)
            await self._load(spec.name + " warm-up", warm, shape, Pace(pace.slots or 8), None)
        watch = ServerWatch(self.pool, options.api_key) if options.watch_server else None
        outcome = await self._load(spec.name, plan, shape, pace, watch)
        result = describe_run(options, spec, plan, shape, pace, facts, outcome, spec.data.seed, vocabulary.source)
        result |= summarise(outcome.records, self.goals, options.percentiles, options.percentile_metrics)
        result["error_counts"] = dict(Counter(record.error for record in outcome.records if record.error))
        result["server_watch"] = watch.report() if watch is not None else {}
        return result | samples(outcome) | (detailed(outcome) if options.save_detailed else {})

    async def _can_tokenize(self) -> bool:
        assert self.facts is not None
        try:
            async with asyncio.timeout(10):
                return bool(await tokenize(self.pool, self.facts.model, "1 2", self.options.api_key))
        except TimeoutError:
            return False

    def _announce(self, spec: prepare.RunSpec, plan: Plan, pace: Pace, history: str, ids_from: str) -> None:
        facts = self.facts
        assert facts is not None
        how = "open loop" if pace.is_open else f"{pace.slots} at a time"
        what = spec.workload.summary if spec.workload else f"{plan.num_requests} requests, {how}"
        version = f" ({facts.version})" if facts.version else ""
        say = self.console.print
        say(
            f"[bold]{spec.name}[/bold] {what} → {self.origin} {facts.model}{version}, seed {spec.data.seed}",
            highlight=False,
            soft_wrap=True,
        )
        if ids_from.startswith("default"):
            say(f"[yellow]note[/yellow] random ids below a safe size ({ids_from})", highlight=False, soft_wrap=True)
        if history in prepare.HISTORY_WORDS:
            say(f"history is resent as {prepare.HISTORY_WORDS[history]}", highlight=False, soft_wrap=True)

    async def _load(
        self, name: str, plan: Plan, shape: RequestShape, pace: Pace, watch: ServerWatch | None
    ) -> RunOutcome:
        options = self.options
        view = ProgressView(self.console, name, plan.num_requests, options.progress)
        workers = prepare.worker_count(pace, plan, options)
        coordinator = Coordinator(plan, shape, pace, workers, self.seed, view.record)
        if watch is not None:
            await watch.begin()
        helpers = [asyncio.create_task(view.show(coordinator))]
        if watch is not None:
            helpers.append(asyncio.create_task(watch.run()))
        self._running = coordinator
        try:
            return await coordinator.run()
        finally:
            self._running = None
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            if watch is not None:
                await watch.end()


def stopping_on_signals(session: Session) -> None:
    """Ctrl-C and SIGTERM end the run and keep what it has."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, session.stop, "stopped by the user")


async def _serve(options: ServeOptions, console: Console) -> int:
    session = Session(options, console)
    stopping_on_signals(session)
    failed = False
    try:
        for spec in prepare.run_specs(options, session.seed):
            result = await session.run(spec)
            print_result(console, result, options.percentile_metrics, options.percentiles)
            if options.save_result:
                console.print(f"saved {save(result, options)}", highlight=False, soft_wrap=True)
            failed = failed or result["failed"] > 0
            if session.stopped:
                break
    finally:
        session.pool.close()
    return 1 if failed or session.stopped else 0


def main(argv: Sequence[str]) -> int:
    """Exit code 0 when every request finished, 1 when any failed; BenchError passes through."""
    parser = argparse.ArgumentParser(
        prog="tsd bench serve",
        description="Load a running OpenAI-compatible server, and report throughput and latency percentiles.",
    )
    add_arguments(parser)
    options = read_options(parser.parse_args(argv))
    if options.result_filename and Path(options.result_filename).is_absolute():
        raise UsageError("--result-filename is a name inside --result-dir")
    return asyncio.run(_serve(options, Console()))
