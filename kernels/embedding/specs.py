"""The embedding kernels."""

from __future__ import annotations

from tsd.kernels.spec import BATCH_INVARIANT, DETERMINISTIC, KernelSpec, Priority

SPECS = (
    KernelSpec(
        op="embedding.lookup",
        name="reference",
        solution="torch",
        target="tsd.kernels.embedding.reference:lookup",
        priority=Priority.REFERENCE,
        flags=frozenset({DETERMINISTIC, BATCH_INVARIANT}),
        summary="plain torch, any table",
    ),
)
