"""The linear kernels."""

from __future__ import annotations

from tsd.kernels.cpu.shapes import whole_blocks
from tsd.kernels.spec import BATCH_INVARIANT, DETERMINISTIC, GRAPH_SAFE, KernelSpec, Priority

SPECS = (
    KernelSpec(
        op="gemm.add_norm",
        name="reference",
        solution="torch",
        target="tsd.kernels.gemm.reference:add_norm",
        priority=Priority.REFERENCE,
        flags=frozenset({DETERMINISTIC}),
        summary="plain torch",
    ),
    KernelSpec(
        op="gemm.gated",
        name="reference",
        solution="torch",
        target="tsd.kernels.gemm.reference:gated",
        priority=Priority.REFERENCE,
        flags=frozenset({DETERMINISTIC, GRAPH_SAFE}),
        summary="plain torch",
    ),
    KernelSpec(
        op="gemm.linear",
        name="reference",
        solution="torch",
        target="tsd.kernels.gemm.reference:linear",
        priority=Priority.REFERENCE,
        flags=frozenset({DETERMINISTIC, GRAPH_SAFE}),
        summary="plain torch; unpacks a packed weight on each call",
    ),
    KernelSpec(
        op="gemm.linear",
        name="cpu_packed",
        solution="c",
        target="tsd.kernels.cpu.native:linear",
        prepare="tsd.kernels.cpu.native:prepare",
        priority=Priority.SPECIALIZED,
        devices=frozenset({"cpu"}),
        weight_methods=frozenset({"q4_1", "q8_0", "int8"}),
        accepts=whole_blocks,
        flags=frozenset({DETERMINISTIC, BATCH_INVARIANT}),
        summary="C: integer dot products against activations rounded to int16 in blocks of 32, all fused",
    ),
    KernelSpec(
        op="gemm.linear",
        name="cpu_dense",
        solution="c",
        target="tsd.kernels.cpu.native:linear",
        prepare="tsd.kernels.cpu.native:prepare",
        priority=Priority.PERFORMANT,
        devices=frozenset({"cpu"}),
        weight_methods=frozenset({"dense"}),
        flags=frozenset({DETERMINISTIC, BATCH_INVARIANT}),
        summary="C, float32 sums in column order, all fused",
    ),
)
