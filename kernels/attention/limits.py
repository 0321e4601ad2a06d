"""What other libraries' attention for Hopper asks of a call site; reasons in words."""

from __future__ import annotations

from tsd.kernels.spec import Traits


def hopper_heads(traits: Traits) -> str | None:
    """Query heads share KV heads evenly, and the cache has the queries' type."""
    num_q, num_kv = (int(traits.get(name, 1)) for name in ("num_q", "num_kv"))
    if num_q % num_kv or num_q // num_kv > 64:
        return f"{num_q} query heads on {num_kv} KV heads"
    dtype, kept = traits.get("dtype", ""), traits.get("kv_dtype", "")
    if dtype and kept and dtype != kept:
        return f"a {kept} cache under {dtype} queries"
    return None
