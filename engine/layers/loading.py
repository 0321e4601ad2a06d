"""From named tensors of a source to the weights and vectors that layers hold. Chooses formats, never kernels."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tsd.engine.layers.site import QUANTIZED, Site
from tsd.engine.weights.source import WeightSource
from tsd.kernels import weight as weights
from tsd.kernels.spec import TraitValue
from tsd.kernels.weight import Weight


def stored_method(source: WeightSource, names: tuple[str, ...]) -> str:
    """The packed method that all the named weights share in the source, or dense."""
    methods = {source.packed_method(f"{name}.weight") for name in names}
    return methods.pop() or "dense" if len(methods) == 1 else "dense"


def settle_method(site: Site, op: str, traits: Mapping[str, TraitValue], stored: str) -> str:
    """How the weight will be held: as asked, or as stored where a kernel gains from it, or dense.

    int8 means 8 bits a weight: one scale a row, or where only that has a kernel, one for each 32 columns (q8_0).
    Rows that do not divide into blocks stay dense.
    """
    if site.quantization == "int8":
        fitting = [method for method in ("int8", "q8_0") if _divides(method, traits)]
        return next((method for method in fitting if site.gains(op, traits, method)), "int8")
    if site.quantization in QUANTIZED:
        return site.quantization if _divides(site.quantization, traits) else "dense"
    keep = site.quantization == "auto" and stored != "dense" and site.gains(op, traits, stored)
    return stored if keep else "dense"


def _divides(method: str, traits: Mapping[str, TraitValue]) -> bool:
    return method == "int8" or int(traits["k"]) % weights.BLOCK == 0


def read_weight(
    site: Site, source: WeightSource, names: tuple[str, ...], rows: tuple[int, ...], columns: int, method: str
) -> Weight:
    """The named weights one below the other, held as `method`."""
    if method != "dense" and stored_method(source, names) == method:
        parts = [source.read_packed(f"{name}.weight") for name in names]
        fused = parts[0] if len(parts) == 1 else weights.concat_rows(parts)
        return fused.to(site.device)
    matrix = torch.empty(sum(rows), columns, dtype=site.dtype, device=site.device)
    start = 0
    for name, count in zip(names, rows, strict=True):
        source.read_into(f"{name}.weight", matrix[start : start + count])
        start += count
    return weights.dense(matrix) if method == "dense" else weights.quantize(matrix, method)


def planned_bytes(shape: tuple[int, int], method: str, dtype: torch.dtype) -> int:
    """Bytes of an [N, K] weight held as `method`, scales included (formats: kernels/weight.py)."""
    rows, columns = shape
    if method == "dense":
        return rows * columns * dtype.itemsize
    per_row = {"q4_1": columns // 32 * 20, "q8_0": columns // 32 * 34, "int8": columns + 4}
    return rows * per_row[method]


def read_vector(site: Site, source: WeightSource, names: list[str], sizes: tuple[int, ...]) -> torch.Tensor:
    """The named vectors one after the other."""
    vector = torch.empty(sum(sizes), dtype=site.dtype, device=site.device)
    start = 0
    for name, size in zip(names, sizes, strict=True):
        source.read_into(name, vector[start : start + size])
        start += size
    return vector
