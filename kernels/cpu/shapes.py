"""What shapes the C kernels take. Imports no kernel, so that specs can ask."""

from __future__ import annotations

from tsd.kernels.spec import Traits


def whole_blocks(traits: Traits) -> str | None:
    """Packed weights come in blocks of 32 columns; `k` is the trait that counts columns."""
    k = int(traits.get("k", 0))
    return f"{k} columns are not a multiple of 32" if k % 32 else None
