"""The text behind `tsd kernels`: for each operation the kernel chosen and why each other one lost."""

from __future__ import annotations

from collections.abc import Mapping

from tsd.kernels.registry import Registry, default_registry
from tsd.kernels.spec import KernelError, Objective, Selection

WEIGHTED = {"gemm.linear": ("dense", "q4_1", "q8_0")}
"""Operations whose answer depends on how weights are packed, with the methods worth showing."""


def explain(selection: Selection) -> str:
    """One selection: a line for each candidate, the chosen one marked with an arrow."""
    width = max(len(candidate.spec.name) for candidate in selection.candidates)
    lines = []
    for spec, chosen, reason in selection.candidates:
        flags = f" [{', '.join(sorted(spec.flags))}]" if spec.flags else ""
        lines.append(f"  {'→' if chosen else ' '} {spec.name:<{width}}  {spec.priority.name:<11} {reason}{flags}")
    return "\n".join(lines)


def explain_all(
    *,
    device: str = "cpu",
    dtype: str = "bfloat16",
    objective: Objective | str = Objective.LATENCY,
    config: Mapping[str, str] | None = None,
    registry: Registry | None = None,
) -> str:
    """Every operation on one device. An operation that nothing can serve says so in place of its candidates."""
    registry = registry or default_registry()
    parts = []
    for op in registry.operations():
        for method in WEIGHTED.get(op, ("",)):
            title = f"{op} {method}".strip()
            try:
                chosen = registry.select(
                    op, dtype=dtype, device=device, weight_method=method, objective=objective, config=config
                )
                parts.append(f"{title}: {chosen.spec.name} ({chosen.spec.solution}), {chosen.why}\n{explain(chosen)}")
            except KernelError as error:
                parts.append(f"{title}: {error}")
    return "\n\n".join(parts)
