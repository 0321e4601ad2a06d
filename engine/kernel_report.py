"""Kernel choices as plain data, for `tsd kernels`, the admin route and the console."""

from __future__ import annotations

from typing import Any

from tsd.engine.layers.site import KernelUse
from tsd.kernels.spec import GRAPH_SAFE, KernelSpec, Selection


def describe(uses: list[KernelUse], sample: Selection) -> list[dict[str, Any]]:
    """One entry for each distinct choice, with why it won and why each other candidate lost."""
    entries = [
        _entry(use.selection, f"{use.role} {'×'.join(map(str, use.shape))} {use.method}".strip(), use.sites)
        for use in uses
    ]
    return [*entries, _entry(sample, "sampling", 1)]


def _entry(selection: Selection, shape: str, sites: int) -> dict[str, Any]:
    return {
        "op": selection.spec.op,
        "shape": shape,
        "sites": sites,
        "selected": selection.spec.name,
        "why": selection.why,
        "us": None,
        "graphs": _graphs(selection.spec),
        "candidates": [
            {
                "name": other.spec.name,
                "priority": int(other.spec.priority),
                "lost": "" if other.chosen else other.reason,
            }
            for other in selection.candidates
        ],
    }


def _graphs(spec: KernelSpec) -> str:
    """How a CUDA graph may hold the kernel: empty, as it is; `planned`, on the host before each replay; `no`."""
    if GRAPH_SAFE not in spec.flags:
        return "no"
    return "planned" if spec.plans else ""
