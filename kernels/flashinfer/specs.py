"""flashinfer's kernels. It is no dependency: where it is missing they lose, and say so.

Only its prefill is taken. Its decode would have to be planned before each token too, and is slower than ours.
"""

from __future__ import annotations

from tsd.kernels.attention.limits import hopper_heads
from tsd.kernels.spec import DETERMINISTIC, GRAPH_SAFE, KernelSpec, Priority, Traits

_HEADS = (64, 128, 256)


def _fits(traits: Traits) -> str | None:
    """flashinfer's kernels for Hopper read pages of any size, and heads of three."""
    head_dim = int(traits.get("head_dim", 128))
    if head_dim not in _HEADS:
        return f"heads of {head_dim}"
    return hopper_heads(traits)


def _kernel(op: str, target: str, summary: str, plans: str = "") -> KernelSpec:
    return KernelSpec(
        op=op,
        name="flashinfer",
        solution="flashinfer",
        target=target,
        priority=Priority.PERFORMANT,
        devices=frozenset({"cuda"}),
        dtypes=frozenset({"bfloat16", "float16"}),
        min_capability=(9, 0),
        max_capability=(9, 0),
        requires=("triton", "flashinfer", "tvm_ffi"),
        accepts=_fits,
        flags=frozenset({DETERMINISTIC, GRAPH_SAFE}),
        plans=plans,
        summary=summary,
    )


SPECS = (
    _kernel(
        "attention.paged",
        "tsd.kernels.flashinfer.attention:paged",
        "flashinfer's fa3 prefill, planned on the host before each step; our decode",
        plans="tsd.kernels.flashinfer.plans:Plans",
    ),
    _kernel(
        "attention.rope_decode",
        "tsd.kernels.triton.decode:rope_decode",
        "our decode, beside flashinfer's prefill",
    ),
)
