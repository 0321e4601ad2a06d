"""`tsd bench compare A.json B.json …`: ratios with confidence intervals, plots in the terminal, an HTML page."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from tsd.bench.bootstrap import Ratio, percentile_of, rate_of, ratio
from tsd.bench.charts import charts_of
from tsd.bench.errors import ResultError, UsageError
from tsd.bench.report import number
from tsd.bench.result import Result
from tsd.bench.series import Series, latency_samples, matched, rate_samples, read_series


class Row(NamedTuple):
    """A figure that is compared. `metric` None: throughput. `better` says which direction is good."""

    label: str
    key: str
    metric: str | None
    percentile: float
    better: str


ROWS = (
    Row("output tok/s", "output_throughput", None, 0, "higher"),
    Row("TTFT p50 ms", "p50_ttft_ms", "ttft", 50, "lower"),
    Row("TTFT p99 ms", "p99_ttft_ms", "ttft", 99, "lower"),
    Row("TPOT p50 ms", "p50_tpot_ms", "tpot", 50, "lower"),
    Row("TPOT p99 ms", "p99_tpot_ms", "tpot", 99, "lower"),
    Row("E2EL p50 ms", "p50_e2el_ms", "e2el", 50, "lower"),
    Row("E2EL p99 ms", "p99_e2el_ms", "e2el", 99, "lower"),
)


class Compared(NamedTuple):
    """One row of one load: the figure of each series (None where it has no such run), and its ratio to the first."""

    row: Row
    values: list[float | None]
    ratios: list[Ratio | None]


def compare_runs(runs: list[Result | None], confidence: float, resamples: int, seed: int) -> list[Compared]:
    """The first run that exists is the base of all ratios."""
    base = next(run for run in runs if run is not None)
    compared = []
    for row in ROWS:
        values = [run.get(row.key) if run is not None else None for run in runs]
        ratios: list[Ratio | None] = []
        for run, value in zip(runs, values, strict=True):
            if run is None or run is base or not value or not base.get(row.key):
                ratios.append(None)
                continue
            measured = value / base[row.key]
            if row.metric is None:
                samples, statistic = (rate_samples(base), rate_samples(run)), rate_of()
            else:
                samples = (latency_samples(base, row.metric), latency_samples(run, row.metric))
                statistic = percentile_of(row.percentile)
            if row.metric is not None and beyond_samples(row.percentile, *samples):
                ratios.append(Ratio(measured, None, None))
                continue
            ratios.append(ratio(*samples, statistic, measured, confidence, resamples, seed))
        compared.append(Compared(row, values, ratios))
    return compared


def beyond_samples(percentile: float, *samples: np.ndarray) -> bool:
    """Fewer than two requests lie above the percentile: resampling cannot tell how far it may move."""
    return min(rows.shape[0] for rows in samples) * (1 - percentile / 100) < 2 - 1e-9


def verdict(row: Row, found: Ratio) -> str:
    """better, worse, or blank when the interval holds 1."""
    if not found.clear:
        return ""
    return "better" if (found.value > 1) == (row.better == "higher") else "worse"


def _cell(row: Row, value: float | None, found: Ratio | None) -> str:
    if value is None:
        return "–"
    if found is None:
        return number(value)
    interval = f" [{found.low:.2f}, {found.high:.2f}]" if found.low is not None else " [too few]"
    style = {"better": "green", "worse": "red"}.get(verdict(row, found), "")
    text = f"×{found.value:.2f}{interval}"
    return f"{number(value)}  " + (f"[{style}]{text}[/{style}]" if style else text).replace(" [", " \\[")


def print_comparison(console: Console, names: list[str], load: str, rows: list[Compared], confidence: float) -> None:
    console.print()
    console.print(
        f"[bold]{load}[/bold] (× is the ratio to {names[0]}, in brackets its {confidence:.0%} interval)",
        highlight=False,
        soft_wrap=True,
    )
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("")
    for name in names:
        table.add_column(name, justify="right")
    for compared in rows:
        cells = [_cell(compared.row, v, r) for v, r in zip(compared.values, compared.ratios, strict=True)]
        table.add_row(compared.row.label, *cells)
    console.print(table)


def caveats(series: list[Series], loads: list[list[Result | None]]) -> list[str]:
    """Differences between the runs that make a ratio mean something else."""
    notes = []
    for runs in loads:
        held = [run for run in runs if run is not None]
        for key, words in (
            ("model_id", "models"),
            ("prompt_kind", "kinds of prompt"),
            ("history", "ways to resend history"),
            ("endpoint", "routes"),
        ):
            found = {str(run.get(key)) for run in held}
            if len(found) > 1:
                notes.append(f"different {words}: {', '.join(sorted(found))}")
        if any(run.get("failed") for run in held):
            notes.append("some requests failed: " + ", ".join(str(run.get("failed")) for run in held))
        machines = {str((run.get("client") or {}).get("cpus")) + str(run.get("gpu")) for run in held}
        if len(machines) > 1:
            notes.append("the runs are from different machines")
    return list(dict.fromkeys(notes))


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="tsd bench compare",
        description="Compare saved results or sweeps; the first file is the base. Runs are matched by their load.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="results or sweeps, two or more")
    parser.add_argument("--names", nargs="+", metavar="NAME", help="what to call them (default: the files' names)")
    parser.add_argument("--confidence", type=float, default=0.95, metavar="C", help="of the intervals (default 0.95)")
    parser.add_argument("--resamples", type=int, default=2000, metavar="N", help="bootstrap draws (default 2000)")
    parser.add_argument("--seed", type=int, default=0, help="of the draws")
    parser.add_argument("--no-plots", action="store_true", help="tables only")
    parser.add_argument("--html", metavar="FILE", help="write tables and plots as one page, images inside it")
    parser.add_argument("--png", metavar="FILE", help="write the plots as one image")
    args = parser.parse_args(argv)
    if len(args.files) < 2:
        raise UsageError("compare needs at least two files")
    if args.names and len(args.names) != len(args.files):
        raise UsageError(f"--names: {len(args.names)} names for {len(args.files)} files")
    if not 0 < args.confidence < 1 or args.resamples < 100:
        raise UsageError("--confidence must lie between 0 and 1, --resamples be at least 100")
    names = args.names or _short_names(args.files)
    series = [read_series(path, name) for path, name in zip(args.files, names, strict=True)]
    loads = matched(series)
    console = Console()
    tables = []
    for key, runs in loads:
        rows = compare_runs(runs, args.confidence, args.resamples, args.seed)
        tables.append((" · ".join(key), rows))
        print_comparison(console, names, " · ".join(key), rows, args.confidence)
    notes = caveats(series, [runs for _, runs in loads])
    for note in notes:
        console.print(f"[yellow]note[/yellow] {note}", highlight=False, soft_wrap=True)
    charts = charts_of(series)
    if not args.no_plots:
        from tsd.bench.chart_text import render

        for chart in charts:
            console.print()
            console.print(render(chart, columns=max(30, min(72, console.width - 16))), soft_wrap=True)
    if args.html:
        from tsd.bench.page import comparison_page

        _write(args.html, comparison_page(names, tables, charts, notes, args.confidence).encode(), console)
    if args.png:
        from tsd.bench.chart_png import render_all

        _write(args.png, render_all(charts), console)
    return 0


def _short_names(files: list[str]) -> list[str]:
    """File names without what they all share."""
    stems = [Path(path).stem for path in files]
    return stems if len(set(stems)) == len(stems) else files


def _write(path: str, data: bytes, console: Console) -> None:
    try:
        Path(path).write_bytes(data)
    except OSError as error:
        raise ResultError(f"cannot write {path}: {error.strerror or error}") from None
    console.print(f"wrote {path}", highlight=False, soft_wrap=True)
