"""The linear kernels."""

from __future__ import annotations

from tsd.kernels.spec import DETERMINISTIC, KernelSpec, Priority

SPECS = (
    KernelSpec(
        op="gemm.linear",
        name="reference",
        solution="torch",
        target="tsd.kernels.gemm.reference:linear",
        priority=Priority.REFERENCE,
        flags=frozenset({DETERMINISTIC}),
        summary="plain torch; unpacks a packed weight on each call",
    ),
)
