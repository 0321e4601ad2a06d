"""A result as text for a terminal: the percentile table, what was odd about the run, the whole record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from tsd.bench.metrics import percentile_name
from tsd.bench.result import Result

_NAMES = {
    "ttft": "TTFT   send → first output",
    "tpot": "TPOT   a token after the first",
    "itl": "ITL    gap between chunks",
    "e2el": "E2EL   send → last output",
}


def number(value: float | None, digits: int = 2) -> str:
    """Thousands separated, few digits where the value is large."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.{1 if abs(value) >= 100 else digits}f}"


def print_result(console: Console, result: Result, metrics: Sequence[str], percentiles: Sequence[float]) -> None:
    """Throughput lines and the latency table."""
    share = result.get("cached_share")
    console.print()
    title = (
        f"[bold]{result['workload']}[/bold] · {result['model_id']} · {result['completed']} of {result['num_prompts']}"
    )
    console.print(f"{title} requests in {number(result.get('duration'))} s", highlight=False, soft_wrap=True)
    line = f"output {number(result.get('output_throughput'), 1)} tok/s"
    line += f" · total {number(result.get('total_token_throughput'), 1)} tok/s"
    line += f" · {number(result.get('request_throughput'))} req/s"
    line += f" · peak {number(result.get('max_output_tokens_per_s'), 0)} tok/s"
    line += f" · at most {result.get('max_concurrent_requests', '–')} in flight"
    if share is not None:
        line += f" · cached share {share:.3f}"
    if result.get("request_goodput") is not None:
        line += f" · goodput {number(result['request_goodput'])} req/s"
    console.print(line, highlight=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("ms")
    for heading in ("mean", *(percentile_name(p) for p in percentiles), "std"):
        table.add_column(heading, justify="right")
    for metric in metrics:
        cells = [result.get(f"mean_{metric}_ms")]
        cells += [result.get(f"{percentile_name(p)}_{metric}_ms") for p in percentiles]
        cells.append(result.get(f"std_{metric}_ms"))
        table.add_row(_NAMES[metric], *(number(cell) for cell in cells))
    console.print(table)
    for warning in warnings_of(result):
        console.print(f"[yellow]note[/yellow] {warning}", highlight=False, soft_wrap=True)


def warnings_of(result: Result) -> list[str]:
    """What a careful reader should know before quoting the figures."""
    notes = []
    client = result.get("client", {})
    if result["failed"]:
        notes.append(f"{result['failed']} requests failed: {first_errors(result)}")
    if result.get("stopped"):
        notes.append(f"the run was cut short: {result['stopped']}")
    if client.get("loop_lags_over_5ms"):
        notes.append(
            f"this client woke late {client['loop_lags_over_5ms']} times, by up to {client['max_loop_lag_ms']:.1f} ms: "
            f"latencies include that (more --workers, or a less busy machine)"
        )
    if result.get("tokens_counted_by") not in ("usage", None) and result["completed"]:
        notes.append("the server sends no usage: tokens are counted as chunks, which is low when a chunk holds several")
    if result.get("usage_disagrees"):
        notes.append(f"usage and per-chunk counts disagree in {result['usage_disagrees']} requests")
    if result.get("output_length_differs") and result.get("parameters", {}).get("ignore_eos"):
        notes.append(f"{result['output_length_differs']} answers are not of the length that was asked for")
    if result.get("input_length_differs"):
        notes.append(
            f"the server counts other prompt lengths than we sent in {result['input_length_differs']} requests"
        )
    if result["workload"] in ("solo", "steady", "crowd") and (result.get("cached_share") or 0) > 0.01:
        notes.append("the server had seen part of these prompts before; run with fresh ones (no --seed)")
    if (result.get("tokens_per_chunk") or 0) > 1.05:
        notes.append(f"chunks hold {result['tokens_per_chunk']:.2f} tokens on average: ITL is a gap between chunks")
    return notes


def first_errors(result: Result, most: int = 3) -> str:
    """The commonest error texts with their counts."""
    errors = result.get("error_counts", {})
    ranked = sorted(errors.items(), key=lambda item: -item[1])
    return "; ".join(f"{text} (×{count})" if count > 1 else text for text, count in ranked[:most])


def print_record(console: Console, result: Result) -> None:
    """All that was recorded about a run, without samples."""
    skip = {"samples_ms", "samples_tokens", "itls", "ttfts", "tpots", "latencies", "generated_texts", "chunk_tokens"}
    skip |= {"input_lens", "output_lens", "start_times", "errors", "sessions", "cached_lens"}
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for key, value in result.items():
        if key in skip or key.endswith("_ms") or value in (None, {}, []):
            continue
        for name, part in _flatten(key, value):
            table.add_row(name, part)
    console.print(table)


def _flatten(key: str, value: Any) -> list[tuple[str, str]]:
    if key.endswith("timeline") and isinstance(value, list):
        return [(key, _timeline(value))]
    if isinstance(value, dict) and len(value) <= 60:
        return [row for name, part in value.items() for row in _flatten(f"{key}.{name}", part)]
    if isinstance(value, float):
        return [(key, number(value, 3))]
    return [(key, str(value))]


def _timeline(samples: list[dict[str, float]]) -> str:
    """Mean and peak of each sampled value."""
    names = sorted({name for sample in samples for name in sample} - {"t"})
    parts = []
    for name in names:
        values = [sample[name] for sample in samples if name in sample]
        parts.append(f"{name} mean {number(sum(values) / len(values), 3)}, peak {number(max(values), 3)}")
    return f"{len(samples)} samples; " + "; ".join(parts)
