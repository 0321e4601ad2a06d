"""Rows of tables: filters, sorting, timelines, events."""

from __future__ import annotations

import pytest

from tsd.console.events.rows import filter_events, numbered
from tsd.console.mailbox import EngineEvent
from tsd.console.pages.detail import summary
from tsd.console.palette import NIGHT
from tsd.console.requests.rows import Row, filter_rows, rows_of, sort_rows
from tsd.console.requests.timeline import Span, band, spans
from tsd.console.snapshot import Engine, Event, RequestRow

ROWS = rows_of(
    (
        Engine(
            engine=0,
            requests=(
                RequestRow("req-a", "Decoding", 9.0, 5000, 100, 40, 50.0, 0, 0, "codex"),
                RequestRow("req-b", "Prefilling", 1.0, 200, None, 0, None, 2, 1, None),
            ),
        ),
        Engine(engine=1, requests=(RequestRow("req-c", "Retracted", 5.0, 9000, 0, 7, 0.0, 1, 0, "Batch"),)),
    )
)


def ids(rows):
    return "".join(row.request.id[-1] for row in rows)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "abc"),
        ("req-b", "b"),
        ("DECOD", "a"),
        ("codex", "a"),
        ("batch", "c"),
        ("prompt>4k", "ac"),
        ("prompt>4k engine=1", "c"),
        ("retr>0", "bc"),
        ("age<2", "b"),
        ("state=retracted", "c"),
        ("client=codex", "a"),
        ("cached>0", "a"),
        ("tok/s>1", "a"),
        ("prio=1", "b"),
        ("nothing", ""),
        ("prompt>x", ""),
        (">5", ""),
        ("=", ""),
    ],
)
def test_filter(text, found):
    assert ids(filter_rows(ROWS, text)) == found


@pytest.mark.parametrize(
    ("column", "descending", "order"),
    [
        ("age", True, "acb"),
        ("age", False, "bca"),
        ("cached", True, "acb"),
        ("cached", False, "cab"),
        ("client", False, "cab"),
        ("engine", True, "cab"),
        ("tok_s", True, "acb"),
        ("id", True, "cba"),
    ],
)
def test_sort_puts_missing_values_last_either_way(column, descending, order):
    assert ids(sort_rows(ROWS, column, descending)) == order


def test_spans_end_where_the_next_begins_and_chunks_merge():
    found = spans(
        [
            [0, "queued", "behind 3"],
            [2.0, "chunk", "512 tokens, 512 of 900"],
            [2.5, "chunk", "388 tokens, 900 of 900"],
            [3.0, "decode", ""],
            [4.0, "retracted", "pool full"],
            [6.0, "resumed", None],
            ["x"],
            None,
            [7, "finished"],
        ]
    )
    assert found == [
        Span(0.0, 2.0, "queued", "behind 3"),
        Span(2.0, 3.0, "chunk", "2 chunks, 900 of 900"),
        Span(3.0, 4.0, "decode", ""),
        Span(4.0, 6.0, "retracted", "pool full"),
        Span(6.0, 7.0, "resumed", ""),
        Span(7.0, None, "finished", ""),
    ]
    assert spans(None) == spans("x") == spans([]) == []


def test_the_band_is_as_wide_as_it_is_told_and_keeps_proportions():
    text = band([Span(0, 5, "queued", ""), Span(5, None, "chunk", "")], 10.0, 20, NIGHT).plain
    assert len(text) == 20 and text == "█" * 10 + "▒" * 10


def test_a_page_summary_tolerates_any_answer():
    for answer in ({}, {"pages": None}, {"pages": [1, "x"]}, {"pages": [{}]}, {"pages": [{"owner": ["a", "b"]}]}):
        assert summary(answer, 60, NIGHT)
    lines = summary({"pages": [{"owner": "req-1", "key": "ab" * 16, "refs": 3}, {"owner": "req-1"}]}, 60, NIGHT)
    assert lines[0].plain == "owner  req-1 × 2" and lines[1].plain == f"key    {'ab' * 16}   refs 3"
    assert "kept for the next request" in summary({"pages": [{"key": "ff"}]}, 60, NIGHT)[0].plain


def test_events_newest_first_by_kind_and_text():
    events = [
        EngineEvent(0, Event(1.0, "retraction", "r1", "pool full", "moved")),
        EngineEvent(1, Event(2.0, "abort", "r2", "client went away", None)),
        EngineEvent(1, Event(3.0, "abort", None, None, "shutdown")),
    ]
    rows = numbered(events)
    assert [row.event.time for row in rows] == [3.0, 2.0, 1.0]
    assert [row.event.time for row in filter_events(rows, "abort", "")] == [3.0, 2.0]
    assert [row.event.time for row in filter_events(rows, "", "POOL moved")] == [1.0]
    assert isinstance(ROWS[0], Row)
