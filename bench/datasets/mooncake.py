"""`mooncake`: the public trace format, one JSON object a line: timestamp (ms), lengths, ids of 512-token blocks.

Equal block ids become equal tokens, so the trace's own prefix sharing is reproduced.
"""

from __future__ import annotations

import msgspec

from tsd.bench.datasets import DatasetOptions
from tsd.bench.datasets.lines import decode_line, numbered_lines
from tsd.bench.errors import DatasetError
from tsd.bench.plan import Kind, Session, Turn
from tsd.bench.store import PieceStore

BLOCK = 512


class _Line(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


def kind(options: DatasetOptions) -> Kind | None:
    return None


def build(options: DatasetOptions, store: PieceStore) -> list[Session]:
    sessions: list[Session] = []
    first: float | None = None
    path = options.path or ""
    for number, line in numbered_lines(options.path, "mooncake"):
        if len(sessions) >= options.num_prompts:
            break
        entry = decode_line(path, number, line, _Line)
        if entry.input_length <= 0 or entry.output_length <= 0:
            raise DatasetError(path, number, "input_length and output_length must be positive")
        blocks = -(-entry.input_length // BLOCK)
        if len(entry.hash_ids) < blocks:
            message = f"{entry.input_length} tokens need {blocks} blocks of {BLOCK}, hash_ids has {len(entry.hash_ids)}"
            raise DatasetError(path, number, message)
        if options.max_input_len is not None and entry.input_length > options.max_input_len:
            continue
        first = entry.timestamp if first is None else first
        if entry.timestamp < first:
            raise DatasetError(path, number, "timestamp before that of the first line")
        pieces = []
        for at in range(blocks):
            tokens = min(BLOCK, entry.input_length - at * BLOCK)
            block = entry.hash_ids[at]
            pieces.append(store.random(f"block {block}" + (f" cut {tokens}" if tokens < BLOCK else ""), tokens))
        output = options.output_len if options.output_len is not None else entry.output_length
        due = (entry.timestamp - first) / 1e3 / options.time_scale
        sessions.append(Session([Turn(pieces, output, entry.input_length)], due))
    return sessions
