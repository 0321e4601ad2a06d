"""The Triton kernels, all families. They need a GPU of compute capability 8.0 and dense weights."""

from __future__ import annotations

from dataclasses import replace

from tsd.kernels.spec import BATCH_INVARIANT, DETERMINISTIC, GRAPH_SAFE, KernelSpec, Objective, Priority, Traits


def _heads(traits: Traits) -> str | None:
    """Query heads share KV heads evenly, and a head fits a tile."""
    num_q, num_kv, head_dim = (int(traits.get(name, 1)) for name in ("num_q", "num_kv", "head_dim"))
    if num_q % num_kv or num_q // num_kv > 64:
        return f"{num_q} query heads on {num_kv} KV heads"
    if head_dim > 256:
        return f"heads of {head_dim}"
    kind = traits.get("kv_dtype", "")
    if kind not in ("", "float32", "bfloat16", "float16"):
        return f"no {kind} cache"
    return None


def _kernel(op: str, name: str, target: str, summary: str) -> KernelSpec:
    return KernelSpec(
        op=op,
        name=name,
        solution="triton",
        target=f"tsd.kernels.triton.{target}",
        priority=Priority.PERFORMANT,
        devices=frozenset({"cuda"}),
        min_capability=(8, 0),
        requires=("triton",),
        flags=frozenset({DETERMINISTIC, BATCH_INVARIANT, GRAPH_SAFE}),
        summary=summary,
    )


_FAST = frozenset({DETERMINISTIC, GRAPH_SAFE})
_DENSE = frozenset({"dense"})

SPECS = (
    replace(
        _kernel("gemm.linear", "triton", "linear:linear", "tuned GEMV and skinny products, cuBLAS for many rows"),
        weight_methods=_DENSE,
        flags=_FAST,
    ),
    replace(
        _kernel("gemm.linear", "triton_invariant", "invariant:linear", "one tile shape for any number of rows"),
        weight_methods=_DENSE,
        priority=Priority.PORTABLE,
    ),
    replace(
        _kernel("attention.paged", "triton", "attention:paged", "decode that reads shared keys once, tiled prefill"),
        accepts=_heads,
        flags=_FAST,
        favours=frozenset({Objective.LATENCY, Objective.THROUGHPUT}),
    ),
    replace(
        _kernel("attention.paged", "triton_invariant", "attention:paged_invariant", "one tiling, one order of keys"),
        accepts=_heads,
        priority=Priority.PORTABLE,
    ),
    replace(
        _kernel("attention.rope_decode", "triton", "decode:rope_decode", "decode straight from the projection"),
        accepts=_heads,
        flags=_FAST,
        favours=frozenset({Objective.LATENCY, Objective.THROUGHPUT}),
    ),
    replace(
        _kernel("gemm.gated", "triton", "linear:gated", "both halves of an MLP's input, gated as they are written"),
        weight_methods=_DENSE,
        flags=_FAST,
    ),
    replace(
        _kernel("gemm.add_norm", "triton", "linear:add_norm", "a product whose parts the next layer's norm adds up"),
        weight_methods=_DENSE,
        flags=_FAST,
    ),
    replace(
        _kernel("attention.rope_write", "triton", "rope:rope_write", "norms, rope and cache write in one launch"),
        accepts=_heads,
    ),
    _kernel("norm.rms", "triton", "norm:rms", "one program a row"),
    replace(_kernel("embedding.lookup", "triton", "embedding:lookup", "one program a token"), weight_methods=_DENSE),
    _kernel("sampling.sample", "triton", "sampling:sample", "two launches; filters without a sort"),
)
