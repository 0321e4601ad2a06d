"""Numbers as words, and small drawings."""

from __future__ import annotations

import pytest

from tsd.console import numbers
from tsd.console.draw import bar, chart, spark


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0"),
        (7, "7"),
        (950, "950"),
        (999.4, "999"),
        (999.6, "1.00k"),
        (1000, "1.00k"),
        (12_345, "12.3k"),
        (123_456, "123k"),
        (999_499, "999k"),
        (999_500, "1.00M"),
        (4_560_000, "4.56M"),
        (3.25, "3.2"),
        (-1500, "-1.50k"),
    ],
)
def test_count(value, text):
    assert numbers.count(value) == text


def test_count_stays_short():
    for exponent in range(15):
        for head in (1, 1.5, 9.94, 9.96, 9.99, 9.999):
            assert len(numbers.count(head * 10**exponent)) <= 5


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.42, "0.42 ms"),
        (12.34, "12.3 ms"),
        (480, "480 ms"),
        (2310, "2.31 s"),
        (12_340, "12.3 s"),
        (85_000, "85.0 s"),
        (150_000, "150 s"),
    ],
)
def test_ms(value, text):
    assert numbers.ms(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.44, "0.4s"),
        (12, "12s"),
        (59.6, "1m 00s"),
        (185, "3m 05s"),
        (8040, "2h 14m"),
        (529_200, "6d 03h"),
    ],
)
def test_duration(value, text):
    assert numbers.duration(value) == text


def test_size_and_percent():
    assert numbers.size(98.2 * 2**30) == "98.2 GiB"
    assert numbers.size(None) == numbers.percent(None) == "–"
    assert numbers.percent(0.427) == "43%"
    assert numbers.ratio(1, 0) is None and numbers.ratio(None, 3) is None and numbers.ratio(1, 4) == 0.25


def test_shorten_keeps_both_ends():
    assert numbers.shorten("http://some-host:8000", 11) == "http:…:8000"
    assert numbers.shorten("abc", 11) == "abc"


def test_spark_is_scaled_and_right_aligned():
    assert spark([0, 7, None, 3.5], 6, "").plain == "  ▁▇ ▄"
    assert len(spark([], 5, "").plain) == 5


def test_bar_shows_anything_above_zero_and_nothing_at_zero():
    assert bar(0.0, 6, "", "").plain == "──────"
    assert bar(0.001, 6, "", "").plain == "╸─────"
    assert bar(1.7, 6, "", "").plain == "━━━━━━"
    assert bar(None, 6, "", "").plain == "–     "


def test_chart_draws_the_target_where_no_column_covers_it():
    rows = [row.plain for row in chart([1.0, 4.0], 9, 4, "", label="", faint="", line=2.0, names=("4", "2"))]
    assert len(rows) == 4 and all(len(row) == 9 for row in rows)
    assert rows[0].startswith("4 ┤") and rows[0].endswith("█")
    assert rows[1].startswith("2 ┤╌") and rows[1].endswith("╌█")
