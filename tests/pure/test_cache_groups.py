"""The joint boundary of cache groups against a brute-force search."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tsd.cache.groups import CacheGroup, GroupHits, GroupKind, joint_boundary

FULL = CacheGroup("full", GroupKind.FULL, 4)


def usable(hits: GroupHits, boundary: int) -> bool:
    """From the definition: what the next token needs to be there is there."""
    group = hits.group
    pages = boundary // group.page_size
    if boundary % group.page_size or pages > len(hits.present):
        return False
    if group.kind is GroupKind.STATE:
        return boundary == 0 or hits.present[pages - 1]
    seen = range(boundary) if group.kind is GroupKind.FULL else range(max(0, boundary - group.window + 1), boundary)
    return all(hits.present[token // group.page_size] for token in seen)


@st.composite
def group_hits(draw: st.DrawFn) -> GroupHits:
    kind = draw(st.sampled_from(list(GroupKind)))
    window = draw(st.integers(1, 20)) if kind is GroupKind.SLIDING else 0
    group = CacheGroup("g", kind, draw(st.sampled_from([1, 2, 4, 6])), window)
    return GroupHits(group, draw(st.lists(st.sampled_from([True, True, True, False]), max_size=24)))


@settings(max_examples=400)
@given(st.lists(group_hits(), min_size=1, max_size=3), st.integers(1, 60))
def test_the_joint_boundary_is_the_longest_that_all_accept(hits: list[GroupHits], num_tokens: int) -> None:
    best = max(b for b in range(num_tokens) if all(usable(one, b) for one in hits))
    assert joint_boundary(hits, num_tokens) == best


def test_one_token_is_always_recomputed() -> None:
    assert joint_boundary([GroupHits(FULL, [True] * 4)], 16) == 12
    assert joint_boundary([GroupHits(FULL, [True] * 4)], 17) == 16
    assert joint_boundary([], 10) == 0


def test_a_state_group_pulls_back_to_its_snapshot() -> None:
    state = CacheGroup("state", GroupKind.STATE, 8)
    hits = [GroupHits(FULL, [True] * 8), GroupHits(state, [True, False, True, False])]
    assert joint_boundary(hits, 32) == 24
    assert joint_boundary(hits, 24) == 8


def test_a_sliding_group_needs_only_its_window() -> None:
    sliding = CacheGroup("window", GroupKind.SLIDING, 4, 8)
    assert joint_boundary([GroupHits(sliding, [False, False, True, True])], 17) == 16
    assert joint_boundary([GroupHits(FULL, [True] * 4), GroupHits(sliding, [False, False, False, True])], 17) == 0


def test_nonsense_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="window"):
        CacheGroup("w", GroupKind.SLIDING, 4)
    with pytest.raises(ValueError, match="page size"):
        CacheGroup("f", GroupKind.FULL, 0)
