"""The norm kernels."""

from __future__ import annotations

from tsd.kernels.spec import BATCH_INVARIANT, DETERMINISTIC, GRAPH_SAFE, KernelSpec, Priority

SPECS = (
    KernelSpec(
        op="norm.rms",
        name="reference",
        solution="torch",
        target="tsd.kernels.norm.reference:rms",
        priority=Priority.REFERENCE,
        flags=frozenset({DETERMINISTIC, BATCH_INVARIANT, GRAPH_SAFE}),
        summary="plain torch, float32 inside",
    ),
    KernelSpec(
        op="norm.rms",
        name="cpu",
        solution="c",
        target="tsd.kernels.cpu.native:rms",
        priority=Priority.PERFORMANT,
        devices=frozenset({"cpu"}),
        flags=frozenset({DETERMINISTIC, BATCH_INVARIANT}),
        summary="C, vectorised",
    ),
)
