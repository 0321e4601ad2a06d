"""The sampling kernels."""

from __future__ import annotations

from tsd.kernels.spec import BATCH_INVARIANT, DETERMINISTIC, KernelSpec, Priority

SPECS = (
    KernelSpec(
        op="sampling.sample",
        name="reference",
        solution="torch",
        target="tsd.kernels.sampling.reference:sample",
        priority=Priority.REFERENCE,
        flags=frozenset({DETERMINISTIC, BATCH_INVARIANT}),
        summary="plain torch; sorts the vocabulary when filters are on",
    ),
    KernelSpec(
        op="sampling.sample",
        name="cpu",
        solution="c",
        target="tsd.kernels.sampling.cpu:sample",
        priority=Priority.PERFORMANT,
        devices=frozenset({"cpu"}),
        flags=frozenset({DETERMINISTIC, BATCH_INVARIANT}),
        summary="C: thresholds by bisection, noise only where it could win",
    ),
)
