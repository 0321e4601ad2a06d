"""Kernel choices as plain data, for `tsd kernels`, the admin route and the console."""

from __future__ import annotations

from typing import Any

from tsd.engine.layers.site import KernelUse
from tsd.kernels.spec import Selection


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
        "candidates": [
            {
                "name": other.spec.name,
                "priority": int(other.spec.priority),
                "lost": "" if other.chosen else other.reason,
            }
            for other in selection.candidates
        ],
    }
