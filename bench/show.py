"""`tsd bench show FILE…`: a saved result as a table and its run record."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

from rich.console import Console

from tsd.bench.metrics import METRICS
from tsd.bench.report import print_record, print_result
from tsd.bench.result import Result, load

_PERCENTILE = re.compile(r"p([\d.]+)_(\w+)_ms")


def shown_percentiles(result: Result) -> list[float]:
    """The percentiles that the file holds."""
    return sorted({float(match[1]) for key in result if (match := _PERCENTILE.fullmatch(key))})


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="tsd bench show", description="Print saved results and how they came about.")
    parser.add_argument("files", nargs="+", metavar="FILE", help="result of tsd bench --save-result")
    parser.add_argument("--brief", action="store_true", help="only the figures")
    args = parser.parse_args(argv)
    console = Console()
    for path in args.files:
        result = load(path)
        metrics = [metric for metric in METRICS if f"median_{metric}_ms" in result]
        print_result(console, result, metrics, shown_percentiles(result))
        if not args.brief:
            console.print()
            print_record(console, result)
    return 0
