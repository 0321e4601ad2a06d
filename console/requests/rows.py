"""Rows of the request table: flattening engines, filtering, sorting, and each cell's words. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tsd.console.numbers import DASH, count, duration, percent, ratio
from tsd.console.palette import Palette
from tsd.console.shell.table import Cell, Column
from tsd.console.snapshot import Engine, RequestRow

COLUMNS = (
    Column("id", "request", 0),
    Column("engine", "eng", 3, right=True, rank=3),
    Column("state", "state", 11),
    Column("age", "age", 7, right=True),
    Column("prompt", "prompt", 7, right=True),
    Column("cached", "cached", 7, right=True),
    Column("output", "output", 7, right=True),
    Column("tok_s", "tok/s", 6, right=True),
    Column("retractions", "retr", 5, right=True, rank=1),
    Column("priority", "prio", 5, right=True, rank=4),
    Column("client", "client", 13, rank=2),
)

ORDER = tuple(column.key for column in COLUMNS)
WORDS = frozenset({"id", "state", "client"})


class Row(NamedTuple):
    engine: int
    request: RequestRow


def rows_of(engines: Sequence[Engine]) -> list[Row]:
    return [Row(engine.engine, request) for engine in engines for request in engine.requests]


def value_of(row: Row, column: str) -> str | float | None:
    """What a column sorts by."""
    if column == "engine":
        return row.engine
    value = getattr(row.request, "age_s" if column == "age" else column)
    return value.lower() if isinstance(value, str) else value


def sort_rows(rows: Sequence[Row], column: str, descending: bool) -> list[Row]:
    """Stable; rows without a value come last in either order."""
    known = [row for row in rows if value_of(row, column) is not None]
    missing = [row for row in rows if value_of(row, column) is None]
    return sorted(known, key=lambda row: value_of(row, column), reverse=descending) + missing  # type: ignore[arg-type, return-value]


def filter_rows(rows: Sequence[Row], text: str) -> list[Row]:
    """Rows that match every word of `text`.

    A plain word is looked for in id, state and client; `prompt>4000`, `age<2`, `retractions>0`, `engine=1` compare.
    A word that does not parse matches as text.
    """
    found = list(rows)
    for word in text.lower().split():
        found = [row for row in found if _matches(row, word)]
    return found


def _matches(row: Row, word: str) -> bool:
    for sign in ("=", ">", "<"):
        name, found, value = word.partition(sign)
        if found and value:
            name = {"retr": "retractions", "prio": "priority", "eng": "engine", "tok/s": "tok_s"}.get(name, name)
            if name in WORDS and sign == "=":
                return value in str(value_of(row, name) or "")
            number = _number(value)
            if name in ORDER and name not in WORDS and number is not None:
                has = value_of(row, name)
                if not isinstance(has, (int, float)):
                    return False
                return has == number if sign == "=" else has > number if sign == ">" else has < number
    request = row.request
    return word in request.id.lower() or word in (request.state or "").lower() or word in (request.client or "").lower()


def _number(text: str) -> float | None:
    scale = {"k": 1e3, "m": 1e6}.get(text[-1:], 1.0)
    try:
        return float(text[:-1] if scale != 1.0 else text) * scale
    except ValueError:
        return None


def key_of(row: Row) -> str:
    return row.request.id


def cells_of(row: Row, palette: Palette) -> dict[str, Cell]:
    request = row.request
    state = request.state or DASH
    hit = ratio(request.cached, request.prompt)
    retracted = bool(request.retractions)
    return {
        "id": (request.id, palette.strong),
        "engine": (str(row.engine), palette.dim),
        "state": (state.lower(), palette.state(state)),
        "age": (duration(request.age_s), palette.text),
        "prompt": (count(request.prompt), palette.text),
        "cached": (percent(hit), palette.text if hit and hit >= 0.5 else palette.dim),
        "output": (count(request.output), palette.text),
        "tok_s": (count(request.tok_s) if request.tok_s else DASH, palette.text),
        "retractions": (count(request.retractions), f"bold {palette.bad}" if retracted else palette.faint),
        "priority": (count(request.priority), palette.text if request.priority else palette.faint),
        "client": (request.client or DASH, palette.blue),
    }
