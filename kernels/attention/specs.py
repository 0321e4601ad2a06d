"""The attention kernels."""

from __future__ import annotations

from tsd.kernels.spec import BATCH_INVARIANT, DETERMINISTIC, KernelSpec, Priority

SPECS = (
    KernelSpec(
        op="attention.rope_write",
        name="reference",
        solution="torch",
        target="tsd.kernels.attention.reference:rope_write",
        priority=Priority.REFERENCE,
        flags=frozenset({DETERMINISTIC, BATCH_INVARIANT}),
        summary="plain torch",
    ),
    KernelSpec(
        op="attention.paged",
        name="reference",
        solution="torch",
        target="tsd.kernels.attention.reference:paged",
        priority=Priority.REFERENCE,
        flags=frozenset({DETERMINISTIC}),
        summary="plain torch, row by row",
    ),
)
