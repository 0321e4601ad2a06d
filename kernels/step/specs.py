"""The bookkeeping kernels."""

from __future__ import annotations

from tsd.kernels.spec import BATCH_INVARIANT, DETERMINISTIC, GRAPH_SAFE, KernelSpec, Priority

_FLAGS = frozenset({DETERMINISTIC, BATCH_INVARIANT, GRAPH_SAFE})


def _pair(op: str, function: str) -> tuple[KernelSpec, KernelSpec]:
    reference = KernelSpec(
        op=op,
        name="reference",
        solution="torch",
        target=f"tsd.kernels.step.reference:{function}",
        priority=Priority.REFERENCE,
        dtypes=frozenset({"int32"}),
        flags=_FLAGS,
        summary="plain torch",
    )
    triton = KernelSpec(
        op=op,
        name="triton",
        solution="triton",
        target=f"tsd.kernels.step.triton:{function}",
        priority=Priority.PERFORMANT,
        devices=frozenset({"cuda"}),
        dtypes=frozenset({"int32"}),
        requires=("triton",),
        flags=_FLAGS,
        summary="one launch",
    )
    return reference, triton


SPECS = (*_pair("step.prepare", "prepare"), *_pair("step.feed", "feed"))
