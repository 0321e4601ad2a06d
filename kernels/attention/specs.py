"""The attention kernels."""

from __future__ import annotations

from tsd.kernels.spec import BATCH_INVARIANT, DETERMINISTIC, FLOATS, KernelSpec, Priority, Traits


def _small_heads(traits: Traits) -> str | None:
    if int(traits.get("head_dim", 0)) > 512:
        return "heads of more than 512"
    if str(traits.get("kv_dtype", "float32")) not in FLOATS:
        return f"no {traits['kv_dtype']} cache"
    return None


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
    KernelSpec(
        op="attention.rope_decode",
        name="reference",
        solution="torch",
        target="tsd.kernels.attention.reference:rope_decode",
        priority=Priority.REFERENCE,
        flags=frozenset({DETERMINISTIC}),
        summary="plain torch: rope_write, then paged",
    ),
    KernelSpec(
        op="attention.rope_write",
        name="cpu",
        solution="c",
        target="tsd.kernels.cpu.native:rope_write",
        priority=Priority.PERFORMANT,
        devices=frozenset({"cpu"}),
        accepts=_small_heads,
        flags=frozenset({DETERMINISTIC, BATCH_INVARIANT}),
        summary="C: head norms, rope and KV write in one pass",
    ),
    KernelSpec(
        op="attention.paged",
        name="cpu",
        solution="c",
        target="tsd.kernels.cpu.native:paged",
        priority=Priority.PERFORMANT,
        devices=frozenset({"cpu"}),
        accepts=_small_heads,
        flags=frozenset({DETERMINISTIC, BATCH_INVARIANT}),
        summary="C: online softmax over blocks of 32 positions, the heads of a group together",
    ),
)
