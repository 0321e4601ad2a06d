"""The embedding kernels."""

from __future__ import annotations

from tsd.kernels.cpu.shapes import whole_blocks
from tsd.kernels.spec import BATCH_INVARIANT, DETERMINISTIC, GRAPH_SAFE, KernelSpec, Priority

SPECS = (
    KernelSpec(
        op="embedding.lookup",
        name="reference",
        solution="torch",
        target="tsd.kernels.embedding.reference:lookup",
        priority=Priority.REFERENCE,
        flags=frozenset({DETERMINISTIC, BATCH_INVARIANT, GRAPH_SAFE}),
        summary="plain torch, any table",
    ),
    KernelSpec(
        op="embedding.lookup",
        name="cpu",
        solution="c",
        target="tsd.kernels.cpu.native:lookup",
        prepare="tsd.kernels.cpu.native:prepare",
        priority=Priority.PERFORMANT,
        devices=frozenset({"cpu"}),
        weight_methods=frozenset({"dense", "q4_1", "q8_0", "int8"}),
        accepts=whole_blocks,
        flags=frozenset({DETERMINISTIC, BATCH_INVARIANT}),
        summary="C, out of the layout that the linear kernel reads: a tied table is held once",
    ),
)
