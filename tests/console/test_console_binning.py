"""Bins onto cells."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsd.console.pages.binning import grid, most_used, next_other


@given(st.binary(max_size=5000).map(lambda b: bytes(x % 6 for x in b)), st.integers(1, 90), st.integers(1, 40))
def test_every_bin_is_in_exactly_one_cell_and_the_cells_fit(states, columns, rows):
    found = grid(states, columns, rows)
    assert len(found.states) <= columns * rows
    seen = [b for cell in range(len(found.states)) for b in found.bins_of(cell)]
    assert seen == list(range(len(states)))
    for cell, state in enumerate(found.states):
        members = [states[b] for b in found.bins_of(cell)]
        assert Counter(members)[state] == max(Counter(members).values())
        assert all(found.cell_of(b) == cell for b in found.bins_of(cell))


def test_a_tie_shows_the_rarer_kind():
    assert most_used(bytes([0, 0, 4, 4])) == 4
    assert most_used(bytes([2, 2, 1])) == 2


def test_a_million_pages_in_4096_bins_fit_an_old_terminal():
    found = grid(bytes(4096), 35, 14)
    assert len(found.states) == 35 * 14


@pytest.mark.parametrize(("place", "step", "to"), [(0, 1, 2), (0, -1, 4), (2, 1, 3), (4, 1, 0)])
def test_next_other(place, step, to):
    assert next_other(bytes([1, 1, 2, 3, 3]), place, step) == to


def test_next_other_of_one_kind_stays():
    assert next_other(bytes(5), 3, 1) == 3
    assert next_other(b"", 0, 1) == 0
