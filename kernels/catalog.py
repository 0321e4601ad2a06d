"""The kernels that come with tsd, listed by family in `<family>/specs.py`; plugins add theirs by entry point."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from tsd.kernels.spec import KernelSpec

FAMILIES = ("gemm", "attention", "norm", "embedding", "sampling", "step", "triton", "fa3", "flashinfer")


def builtin_specs() -> Iterator[KernelSpec]:
    """Every spec of every family. Importing the lists imports no kernel."""
    for family in FAMILIES:
        yield from import_module(f"tsd.kernels.{family}.specs").SPECS
