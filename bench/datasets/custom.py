"""`custom`: one JSON object a line: {"prompt": text or ids} or {"messages": […]}.

Optional: `output_tokens`, and `at`, which is seconds after the start (open loop). All lines of a file are of one kind.
"""

from __future__ import annotations

import msgspec

from tsd.bench.datasets import DatasetOptions
from tsd.bench.datasets.lines import decode_line, numbered_lines
from tsd.bench.errors import DatasetError
from tsd.bench.plan import Kind, Session, Turn
from tsd.bench.store import PieceStore

_DEFAULT_OUTPUT = 128


class _Line(msgspec.Struct):
    prompt: str | list[int] | None = None
    messages: list[dict[str, object]] | None = None
    output_tokens: int | None = None
    at: float | None = None


def _kind_of(path: str, number: int, line: _Line) -> Kind:
    if (line.prompt is None) == (line.messages is None):
        raise DatasetError(path, number, "needs either `prompt` or `messages`")
    if line.prompt == [] or line.prompt == "" or line.messages == []:
        raise DatasetError(path, number, "the prompt is empty")
    if line.messages is not None:
        return "messages"
    return "text" if isinstance(line.prompt, str) else "ids"


def kind(options: DatasetOptions) -> Kind | None:
    """The kind of the first line."""
    for number, line in numbered_lines(options.path, "custom"):
        return _kind_of(options.path or "", number, decode_line(options.path or "", number, line, _Line))
    raise DatasetError(options.path or "", None, "the file is empty")


def build(options: DatasetOptions, store: PieceStore) -> list[Session]:
    path = options.path or ""
    expected = kind(options)
    sessions: list[Session] = []
    for number, line in numbered_lines(options.path, "custom"):
        if len(sessions) >= options.num_prompts:
            break
        entry = decode_line(path, number, line, _Line)
        found = _kind_of(path, number, entry)
        if found != expected:
            raise DatasetError(path, number, f"holds {found}, the lines before hold {expected}")
        if entry.messages is not None:
            piece, length = store.messages(entry.messages), 0
        elif isinstance(entry.prompt, list):
            piece, length = store.ids(entry.prompt), len(entry.prompt)
        else:
            assert entry.prompt is not None
            piece, length = store.text(entry.prompt), 0
        output = options.output_len if options.output_len is not None else entry.output_tokens or _DEFAULT_OUTPUT
        if output <= 0:
            raise DatasetError(path, number, "output_tokens must be positive")
        sessions.append(Session([Turn([piece], output, length)], entry.at))
    return sessions
