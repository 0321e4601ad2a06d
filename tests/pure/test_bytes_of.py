"""The bytes of a step's arrays, against numpy's."""

from __future__ import annotations

import numpy as np
import pytest

from tsd.engine.bytes_of import masked_ids, raw_tokens


def test_bytes_equal_numpy() -> None:
    draw = np.random.default_rng(1)
    mask = (1 << 40) - 1
    for size in (0, 1, 5, 300):
        ids = draw.integers(0, 2**63, size, np.int64)
        tokens = draw.integers(-(2**31), 2**31, size, np.int64).astype(np.int32)
        assert masked_ids(ids, mask) == (ids & mask).astype("<i8").tobytes()
        assert raw_tokens(tokens) == tokens.astype("<i4").tobytes()


def test_other_arrays_are_refused() -> None:
    with pytest.raises(TypeError):
        masked_ids(np.zeros(3, np.int32), 1)
    with pytest.raises(TypeError):
        raw_tokens(np.zeros(6, np.int32)[::2])
    with pytest.raises(TypeError):
        raw_tokens([1, 2])  # type: ignore[arg-type]
