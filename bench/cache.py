"""`tsd bench cache`: what the prefix cache costs the host: hashing, lookup of hits and misses, insertion, eviction.

Drives the scheduler with a model that costs nothing, so that what remains is bookkeeping. Times are per page.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from time import perf_counter_ns
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from tsd.bench.errors import UsageError
from tsd.cache.hashing import PageHasher
from tsd.scheduler.core import Scheduler
from tsd.scheduler.types import RequestSpec, SchedulerConfig, StepLanded

_VOCABULARY = 50_000


class Cost(NamedTuple):
    """Median nanoseconds a page, and of the whole prompt in microseconds."""

    operation: str
    tokens: int
    pages: int
    ns_per_page: float
    us: float


class _Bed:
    """A scheduler whose every step lands at once."""

    def __init__(self, num_pages: int, page_size: int, longest: int) -> None:
        self.scheduler = Scheduler(
            SchedulerConfig(
                max_num_seqs=4,
                max_model_len=longest + 16,
                num_pages=num_pages,
                page_size=page_size,
                chunked_prefill_size=1 << 20,
                max_in_flight=1,
                max_queued_tokens=1 << 30,
            )
        )
        self._next = 0
        self._now = 0.0

    def submit(self, prompt: np.ndarray) -> None:
        self._next += 1
        self._now += 1.0
        self.scheduler.submit(RequestSpec(request_id=self._next, prompt=prompt, max_tokens=1), self._now)

    def finish(self) -> tuple[int, int]:
        """(ns in next_plan, ns in advance) until nothing is left."""
        planning = landing = 0
        while self.scheduler.has_work:
            began = perf_counter_ns()
            plan = self.scheduler.next_plan(self._now)
            planned = perf_counter_ns()
            planning += planned - began
            if plan is None:
                break
            tokens = np.ones(plan.num_rows, dtype=np.int32)
            began = perf_counter_ns()
            self.scheduler.advance(StepLanded(plan.step, tokens), self._now)
            landing += perf_counter_ns() - began
        self.scheduler.take_finished()
        return planning, landing

    def run(self, prompt: np.ndarray) -> tuple[int, int]:
        """(ns to submit and plan, ns to land) of one request of one token: lookup is in the first, insertion in the
        second."""
        began = perf_counter_ns()
        self.submit(prompt)
        submitted = perf_counter_ns() - began
        planning, landing = self.finish()
        return submitted + planning, landing


def measure(tokens: int, page_size: int, repeats: int, seed: int) -> list[Cost]:
    """Costs for prompts of one length. The pool holds 16 such prompts for hits and misses, 2 for eviction."""
    source = np.random.default_rng(seed)
    pages = tokens // page_size

    def prompt() -> np.ndarray:
        return source.integers(0, _VOCABULARY, tokens, dtype=np.int32)

    def cost(name: str, samples: list[int]) -> Cost:
        median = float(np.median(samples))
        return Cost(name, tokens, pages, median / max(1, pages), median / 1e3)

    hasher = PageHasher(page_size, secret=b"k" * 16)
    hashing = []
    for _ in range(repeats):
        fresh = prompt()
        began = perf_counter_ns()
        hasher.chain(fresh)
        hashing.append(perf_counter_ns() - began)

    roomy = _Bed(pages * 16 + 64, page_size, tokens)
    misses, inserts, hits = [], [], []
    for _ in range(min(repeats, 14)):
        fresh = prompt()
        looked, landed = roomy.run(fresh)
        misses.append(looked)
        inserts.append(landed)
        hits.append(roomy.run(fresh)[0])

    tight = _Bed(pages * 2 + 8, page_size, tokens)
    for _ in range(3):
        tight.run(prompt())
    evicting = [tight.run(prompt())[0] for _ in range(repeats)]
    return [
        cost("hash every page", hashing),
        cost("submit and plan, nothing cached", misses),
        cost("submit and plan, all cached", hits),
        cost("land: insert every page", inserts),
        cost("submit and plan, evicting as much", evicting),
    ]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="tsd bench cache",
        description="Measure the host's cost of the prefix cache, per page, with a model that costs nothing.",
    )
    parser.add_argument(
        "--tokens", type=int, nargs="+", default=[1024, 8192, 65536], metavar="T", help="prompt lengths"
    )
    parser.add_argument("--page-size", type=int, default=16, metavar="T")
    parser.add_argument("--repeats", type=int, default=14, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    args = parser.parse_args(argv)
    if min(args.tokens) < args.page_size or args.page_size <= 0 or args.repeats <= 0:
        raise UsageError("prompts must hold at least one page, and --repeats be above zero")
    costs = [cost for tokens in args.tokens for cost in measure(tokens, args.page_size, args.repeats, args.seed)]
    if args.json:
        for cost in costs:
            print(json.dumps(cost._asdict()))
        return 0
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("operation")
    for heading in ("tokens", "pages", "ns a page", "µs a prompt"):
        table.add_column(heading, justify="right")
    for cost in costs:
        table.add_row(
            cost.operation, f"{cost.tokens:,}", f"{cost.pages:,}", f"{cost.ns_per_page:,.0f}", f"{cost.us:,.1f}"
        )
    Console().print(table)
    return 0
