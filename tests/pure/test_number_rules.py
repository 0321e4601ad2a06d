"""Decimal numbers between bounds: the expression's language, asked of Python's own arithmetic."""

from __future__ import annotations

import random
import re
from decimal import Decimal

import pytest

from tsd.engine.number_rules import Bound, number_rule


def pattern_of(rule: str) -> re.Pattern[str]:
    return re.compile(re.sub(r'"([^"]*)"', lambda match: re.escape(match[1]), rule).replace(" ", ""))


def bound(chooser: random.Random, value: Decimal) -> Bound | None:
    return Bound(value, chooser.random() < 0.4) if chooser.random() < 0.8 else None


def spellings(value: Decimal) -> set[str]:
    text = f"{value:f}"
    return {text, text.rstrip("0").rstrip(".")} if "." in text else {text}


@pytest.mark.parametrize("decimals", [0, 2, 4, 9])
def test_numbers_between_bounds_and_no_others(decimals: int) -> None:
    chooser = random.Random(decimals)
    empty = 0
    for _ in range(500):
        places = [chooser.randint(0, min(decimals, 3)) for _ in range(2)]
        ends = sorted(Decimal(chooser.randint(-3000, 3000)).scaleb(-place) for place in places)
        low, high = bound(chooser, ends[0]), bound(chooser, ends[1])
        try:
            pattern = pattern_of(number_rule(low, high, decimals))
        except ValueError:
            empty += 1
            continue
        near = {end + sign * Decimal(step) for end in (*ends, Decimal(0)) for step in STEPS for sign in (1, -1)}
        near |= {Decimal(chooser.randint(-40_000, 40_000)).scaleb(-chooser.randint(0, decimals)) for _ in range(20)}
        for value in near:
            inside = (low is None or value > low.value or (value == low.value and not low.exclusive)) and (
                high is None or value < high.value or (value == high.value and not high.exclusive)
            )
            for text in spellings(value):
                if float(text) == 0 and text.startswith("-"):
                    continue
                fits = len(text.partition(".")[2]) <= decimals
                assert bool(pattern.fullmatch(text)) == (inside and fits), (low, high, text)
    assert empty < 100


STEPS = ("0", "0.0001", "0.001", "0.01", "0.1", "0.5", "1", "10")


def test_no_number_between() -> None:
    for low, high in ((Bound(Decimal(2)), Bound(Decimal(1))), (Bound(Decimal(1), True), Bound(Decimal(1)))):
        with pytest.raises(ValueError, match="no number"):
            number_rule(low, high)
    with pytest.raises(ValueError, match="digits"):
        number_rule(Bound(Decimal("0.123")), None, 2)
