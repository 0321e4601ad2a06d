"""Page keys: chained, keyed, salted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsd.cache.hashing import PageHasher

IDS = st.lists(st.integers(0, 2**31 - 1), min_size=0, max_size=40)


@pytest.mark.parametrize("page_size", [1, 2, 3, 4, 5, 7, 16])
@given(tokens=IDS, at=st.integers(0, 39))
def test_a_key_depends_on_every_token_up_to_its_page_and_on_none_after(
    page_size: int, tokens: list[int], at: int
) -> None:
    hasher = PageHasher(page_size, b"secret")
    ids = np.array(tokens, np.int32)
    keys = hasher.chain(ids)
    assert len(keys) == len(tokens) // page_size
    assert all(len(key) == 16 for key in keys)
    if at < len(tokens):
        changed = ids.copy()
        changed[at] ^= 1
        for page, (one, other) in enumerate(zip(keys, hasher.chain(changed), strict=True)):
            assert (one == other) == (page < at // page_size)


def test_secret_namespace_and_salt_separate_the_same_tokens() -> None:
    ids = np.arange(64, dtype=np.int32)
    chains = [
        PageHasher(16, b"a").chain(ids),
        PageHasher(16, b"b").chain(ids),
        PageHasher(16, b"a", b"weights 2").chain(ids),
        PageHasher(16, b"a").chain(ids, b"tenant"),
        PageHasher(16, b"a", b"w").chain(ids, b"eights"),
        PageHasher(16, b"a", b"we").chain(ids, b"ights"),
    ]
    keys = [key for chain in chains for key in chain]
    assert len(set(keys)) == len(keys)
    assert PageHasher(16, b"a").chain(ids) == chains[0]
    assert PageHasher(16).chain(ids) != PageHasher(16).chain(ids), "an empty secret must be random"


def test_keys_spread_evenly_over_their_bits() -> None:
    hasher = PageHasher(4, b"spread")
    keys = [hasher.chain(np.array([i, 0, 0, 0], np.int32))[0] for i in range(4096)]
    bits = np.unpackbits(np.frombuffer(b"".join(keys), np.uint8)).reshape(4096, 128).mean(0)
    assert bits.min() > 0.45 and bits.max() < 0.55
    assert len(set(keys)) == 4096
