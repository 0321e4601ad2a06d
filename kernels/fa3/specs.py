"""FlashAttention-3's kernels. Its wheel is no dependency: where it is missing they lose, and say so."""

from __future__ import annotations

from tsd.kernels.attention.limits import hopper_heads
from tsd.kernels.spec import DETERMINISTIC, GRAPH_SAFE, KernelSpec, Priority, Traits

_HALVES = frozenset({"bfloat16", "float16"})


def _fits(traits: Traits) -> str | None:
    """FlashAttention-3 reads pages of any size, and heads of up to 256 in steps of 8."""
    head_dim = int(traits.get("head_dim", 128))
    if head_dim > 256 or head_dim % 8:
        return f"heads of {head_dim}"
    return hopper_heads(traits)


def _kernel(op: str, target: str, summary: str) -> KernelSpec:
    return KernelSpec(
        op=op,
        name="fa3",
        solution="fa3",
        target=target,
        priority=Priority.PERFORMANT,
        devices=frozenset({"cuda"}),
        dtypes=_HALVES,
        min_capability=(9, 0),
        max_capability=(9, 0),
        requires=("triton", "flash_attn_interface"),
        accepts=_fits,
        flags=frozenset({DETERMINISTIC, GRAPH_SAFE}),
        summary=summary,
    )


SPECS = (
    _kernel("attention.paged", "tsd.kernels.fa3.attention:paged", "FlashAttention-3 prefill, our decode"),
    _kernel("attention.rope_decode", "tsd.kernels.triton.decode:rope_decode", "our decode, beside fa3's prefill"),
)
