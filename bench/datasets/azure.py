"""`azure`: the public csv of LLM inference traces: TIMESTAMP,ContextTokens,GeneratedTokens."""

from __future__ import annotations

import csv
from datetime import datetime

from tsd.bench.datasets import DatasetOptions
from tsd.bench.datasets.lines import numbered_lines
from tsd.bench.errors import DatasetError
from tsd.bench.plan import Kind, Session, Turn
from tsd.bench.store import PieceStore

_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def kind(options: DatasetOptions) -> Kind | None:
    return None


def _seconds(text: str) -> float:
    """A timestamp such as `2023-11-16 18:17:03.9799600` (any number of fractional digits, an offset allowed)."""
    stamp, _, rest = text.strip().partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    return datetime.fromisoformat(stamp + rest[len(digits) :]).timestamp() + (float(f"0.{digits}") if digits else 0.0)


def build(options: DatasetOptions, store: PieceStore) -> list[Session]:
    path = options.path or ""
    lines = numbered_lines(options.path, "azure")
    header = next(lines, None)
    if header is None:
        raise DatasetError(path, None, "the file is empty")
    names = [name.strip().lstrip("\ufeff") for name in next(csv.reader([header[1]]))]
    missing = [name for name in _COLUMNS if name not in names]
    if missing:
        raise DatasetError(path, header[0], f"no column {missing[0]} (columns: {', '.join(names)})")
    columns = [names.index(name) for name in _COLUMNS]
    sessions: list[Session] = []
    first: float | None = None
    for number, line in lines:
        if len(sessions) >= options.num_prompts:
            break
        fields = next(csv.reader([line]))
        try:
            when, context, generated = (fields[column] for column in columns)
            at, context_tokens, output = _seconds(when), int(context), int(generated)
        except (ValueError, IndexError) as error:
            raise DatasetError(path, number, f"not TIMESTAMP,ContextTokens,GeneratedTokens ({error})") from None
        if context_tokens <= 0 or output <= 0:
            raise DatasetError(path, number, "token counts must be positive")
        if options.max_input_len is not None and context_tokens > options.max_input_len:
            continue
        first = at if first is None else first
        if at < first:
            raise DatasetError(path, number, "TIMESTAMP before that of the first row")
        output = options.output_len if options.output_len is not None else output
        piece = store.random(f"row {number}", context_tokens)
        sessions.append(Session([Turn([piece], output, context_tokens)], (at - first) / options.time_scale))
    return sessions
