"""Decimal numbers between bounds, as an EBNF expression over JSON's spelling of them. Knows no schema and no xgrammar.

Numbers are written without an exponent, with at most `DECIMALS` digits after the point. A bound splits its neighbours
by the first digit in which they differ, so that an expression has a few alternatives for each digit of the bounds.
"""

from __future__ import annotations

from decimal import Decimal
from typing import NamedTuple

DECIMALS = 15
INTEGER_DIGITS = 15
"""Of a number that no bound keeps small."""


class Bound(NamedTuple):
    value: Decimal
    exclusive: bool = False


def number_rule(low: Bound | None, high: Bound | None, decimals: int = DECIMALS) -> str:
    """Raises ValueError where no number lies between."""
    found = []
    if low is None or low.value < 0:
        least = Bound(Decimal(0)) if high is None or high.value >= 0 else Bound(-high.value, high.exclusive)
        zero = high is not None and high.value == 0 and high.exclusive
        most = None if low is None else Bound(-low.value, low.exclusive)
        found += [f'"-" ({part})' for part in _positive(Bound(least.value, least.exclusive or zero), most, decimals)]
    if high is None or high.value >= 0:
        least = Bound(Decimal(0)) if low is None or low.value < 0 else low
        found += _positive(least, high, decimals)
    if not found:
        raise ValueError("no number lies between the bounds")
    return " | ".join(f"({part})" for part in found)


def _positive(low: Bound, high: Bound | None, decimals: int) -> list[str]:
    """Alternatives for numbers without a sign."""
    if high is not None and (high.value < low.value or (high.value == low.value and (low.exclusive or high.exclusive))):
        return []
    whole_low, after_low = _parts(low.value, decimals)
    if high is None:
        return [
            *_join(whole_low, _fraction(after_low, low.exclusive, None, False, decimals)),
            *(f"{whole}{_any_fraction(decimals)}" for whole in _integers_from(int(whole_low) + 1)),
        ]
    whole_high, after_high = _parts(high.value, decimals)
    if whole_low == whole_high:
        return _join(whole_low, _fraction(after_low, low.exclusive, after_high, high.exclusive, decimals))
    return [
        *_join(whole_low, _fraction(after_low, low.exclusive, None, False, decimals)),
        *(f"{w}{_any_fraction(decimals)}" for w in _integers(int(whole_low) + 1, int(whole_high) - 1)),
        *_join(whole_high, _fraction("", False, after_high, high.exclusive, decimals)),
    ]


def _parts(value: Decimal, decimals: int) -> tuple[str, str]:
    """The digits before and, without final zeros, after the point."""
    whole, _, after = f"{value:f}".partition(".")
    after = after.rstrip("0")
    if len(after) > decimals:
        raise ValueError("a bound has too many digits after the point")
    return str(int(whole)), after


def _join(whole: str, fractions: list[str]) -> list[str]:
    return [f'"{whole}"{f" {fraction}" if fraction else ""}' for fraction in fractions]


def _any_fraction(decimals: int) -> str:
    return f' ("." [0-9]{{1,{decimals}}})?' if decimals else ""


def _fraction(low: str, low_open: bool, high: str | None, high_open: bool, decimals: int) -> list[str]:
    """What may follow the whole part: fractions from `low` to `high` (None: to the next whole number), as digits.
    An empty alternative stands for none."""
    found = []
    above_low = not low and not low_open
    below_high = high is None or high != "" or not high_open
    if above_low and below_high:
        found.append("")
    found += [f'"." {part}' for part in _digits(low, low_open, high, high_open, decimals)]
    return found


def _digits(low: str, low_open: bool, high: str | None, high_open: bool, room: int) -> list[str]:
    """Strings of 1 to `room` digits d with low <= d <= high as fractions; `high` None is no bound."""
    if room == 0:
        return []
    if not low and not low_open and high is None:
        return [f"[0-9]{{1,{room}}}"]
    if high == "":
        return [] if low or low_open or high_open else [f"[0]{{1,{room}}}"]
    if not low and high is None and room > 4:
        return [f"[0]{{0,{room // 2}}} [1-9] [0-9]{{0,{room - room // 2 - 1}}}"]
    found = []
    first, last = int(low[:1] or "0"), 9 if high is None else int(high[:1] or "0")
    for digit in range(first, last + 1):
        on_low, on_high = digit == first and bool(low or low_open), digit == last and high is not None
        if not on_low and not on_high:
            continue
        low_rest, high_rest = low[1:] if on_low else "", (high or "")[1:] if on_high else None
        still_open = on_low and low_open
        ends = not (on_low and (low_rest or low_open)) and not (on_high and not high_rest and high_open)
        tails = _digits(low_rest, still_open, high_rest, high_open and on_high, room - 1)
        found += [f'"{digit}" {tail}' for tail in tails] + ([f'"{digit}"'] if ends else [])
    free_from = first + 1 if low or low_open else first
    free_to = last - 1 if high is not None else last
    if free_from <= free_to:
        rest = f" [0-9]{{0,{room - 1}}}" if room > 1 else ""
        found.append(f"[{free_from}-{free_to}]{rest}")
    return found


def _integers_from(low: int) -> list[str]:
    """Spellings of the integers from `low` (> 0) on."""
    width = len(str(low))
    found = _integers(low, 10**width - 1)
    if width < INTEGER_DIGITS:
        found.append(f"[1-9] [0-9]{{{width},{INTEGER_DIGITS - 1}}}")
    return found


def _integers(low: int, high: int) -> list[str]:
    """Spellings of the integers from `low` (>= 0) to `high`."""
    found: list[str] = []
    while low <= high:
        width = len(str(low))
        top = min(high, 10**width - 1)
        found += _same_width(str(low), str(top))
        low = top + 1
    return found


def _same_width(low: str, high: str) -> list[str]:
    if low == high:
        return [f'"{low}"']
    if low[0] == high[0]:
        return [f'"{low[0]}" {tail}' for tail in _same_width(low[1:], high[1:])]
    rest = len(low) - 1
    if rest == 0:
        return [f"[{low}-{high}]"]
    found = []
    first, last = int(low[0]), int(high[0])
    if low[1:] != "0" * rest:
        found += [f'"{first}" {tail}' for tail in _same_width(low[1:], "9" * rest)]
        first += 1
    top = []
    if high[1:] != "9" * rest:
        top = [f'"{last}" {tail}' for tail in _same_width("0" * rest, high[1:])]
        last -= 1
    if first <= last:
        found.append(f"[{first}-{last}] [0-9]{{{rest}}}")
    return found + top
