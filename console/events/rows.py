"""Rows of the event log and their words. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tsd.console.mailbox import EngineEvent
from tsd.console.numbers import clock
from tsd.console.palette import Palette
from tsd.console.shell.table import Cell, Column
from tsd.console.snapshot import Event

KINDS = (
    "retraction",
    "eviction",
    "abort",
    "refusal",
    "error",
    "finish",
    "flush",
    "pause",
    "resume",
    "drain",
    "restart",
)

GLYPHS = {
    "retraction": "■",
    "eviction": "◁",
    "abort": "×",
    "refusal": "▲",
    "error": "!",
    "finish": "●",
    "restart": "↻",
}

COLUMNS = (
    Column("time", "time", 8),
    Column("kind", "kind", 12),
    Column("engine", "eng", 3, right=True, rank=2),
    Column("request", "request", 18, rank=1),
    Column("cause", "cause", 18),
    Column("text", "what", 0),
)


class Row(NamedTuple):
    number: int
    engine: int
    event: Event


def numbered(events: Sequence[EngineEvent]) -> list[Row]:
    """Newest first. The number is stable while events only come in: it counts from the newest time downwards."""
    return [Row(place, engine, event) for place, (engine, event) in enumerate(events)][::-1]


def filter_events(rows: Sequence[Row], kind: str, text: str) -> list[Row]:
    words = text.lower().split()
    return [
        row
        for row in rows
        if (not kind or row.event.kind == kind)
        and all(
            any(
                word in (value or "").lower()
                for value in (row.event.request_id, row.event.cause, row.event.text, row.event.kind)
            )
            for word in words
        )
    ]


def key_of(row: Row) -> str:
    event = row.event
    return f"{event.time}/{row.engine}/{event.kind}/{event.request_id}"


def cells_of(row: Row, palette: Palette) -> dict[str, Cell]:
    event = row.event
    style = {
        "retraction": palette.bad,
        "error": f"bold {palette.bad}",
        "abort": palette.warn,
        "refusal": palette.warn,
        "eviction": palette.blue,
        "finish": palette.ok,
        "restart": palette.strong,
    }.get(event.kind, palette.accent)
    return {
        "time": (clock(event.time), palette.dim),
        "kind": (f"{GLYPHS.get(event.kind, '○')} {event.kind}", style),
        "engine": (str(row.engine) if row.engine >= 0 else "", palette.dim),
        "request": (event.request_id or "", palette.strong),
        "cause": (event.cause or "", palette.text),
        "text": (event.text or "", palette.dim),
    }
