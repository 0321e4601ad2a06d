"""A weight matrix, dense or packed, as kernels read it. Knows number formats; knows nothing about files or models.

Canonical ("rows") form of each method, N rows of K columns; every tensor has N first, so rows concatenate and permute:

  dense  w  float [N, K]
  q4_1   qs uint8 [N, K/32, 16] (byte j: element j low, j + 16 high), d, m float16 [N, K/32];  w = q * d + m
  q8_0   qs int8  [N, K/32, 32], d float16 [N, K/32];                                        w = q * d
  int8   qs int8  [N, K], d float32 [N];                                                     w = q * d

A kernel may keep a weight in a layout of its own (`Selection.prepare`); such a weight still answers `dequantize`.

WeightError: blocks or tensors whose shapes, types or methods do not fit together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

BLOCK = 32
"""Columns that share a scale in q4_1 and q8_0."""
ROWS = "rows"


class WeightError(ValueError):
    """Blocks or tensors that cannot make a weight."""


@dataclass
class Weight:
    """[N, K]: y = x @ w.T. `tensors` by name as the method (or the kernel's own layout) defines them."""

    method: str
    tensors: dict[str, torch.Tensor]
    shape: tuple[int, int]
    layout: str = ROWS
    unpack: Callable[[Weight], Weight] | None = field(default=None, repr=False)
    """From a kernel's own layout back to rows; None for rows."""
    handle: object | None = field(default=None, repr=False, compare=False)
    """What a kernel keeps beside the weight between calls; never copied."""

    @property
    def device(self) -> torch.device:
        return next(iter(self.tensors.values())).device

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def as_rows(self) -> Weight:
        """This weight in canonical form."""
        return self if self.unpack is None else self.unpack(self)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The dense [N, K]; products of scale and integer are taken in float32, then cast."""
        weight = self.as_rows()
        return decoder(weight.method)(weight.tensors).reshape(weight.shape).to(dtype)

    def rows(self, ids: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Dense rows [T, K] at ids [T]."""
        weight = self.as_rows()
        picked = {name: tensor.index_select(0, ids.to(torch.int64)) for name, tensor in weight.tensors.items()}
        return decoder(weight.method)(picked).reshape(len(ids), weight.shape[1]).to(dtype)

    def to(self, device: torch.device | str) -> Weight:
        tensors = {name: tensor.to(device) for name, tensor in self.tensors.items()}
        return Weight(self.method, tensors, self.shape, self.layout, self.unpack)


Decoder = Callable[[dict[str, torch.Tensor]], torch.Tensor]
_DECODERS: dict[str, Decoder] = {}


def add_method(name: str, decode: Decoder) -> None:
    """Teaches a packed method: `decode` turns its tensors into float32 rows (any shape that reshapes to [N, K])."""
    _DECODERS[name] = decode


def decoder(method: str) -> Decoder:
    """The decoder of a method. Raises WeightError."""
    if method not in _DECODERS:
        raise WeightError(f"unknown weight method {method!r} (known: {', '.join(sorted(_DECODERS))})")
    return _DECODERS[method]


def _decode_q4_1(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    packed = tensors["qs"]
    q = torch.cat((packed & 15, packed >> 4), dim=-1).to(torch.float32)
    return q * tensors["d"].to(torch.float32).unsqueeze(-1) + tensors["m"].to(torch.float32).unsqueeze(-1)


def _decode_scaled(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    return tensors["qs"].to(torch.float32) * tensors["d"].to(torch.float32).unsqueeze(-1)


add_method("dense", lambda tensors: tensors["w"])
add_method("q4_1", _decode_q4_1)
add_method("q8_0", _decode_scaled)
add_method("int8", _decode_scaled)


def dense(tensor: torch.Tensor) -> Weight:
    """A dense weight over [N, K]; the tensor is kept, not copied. Raises WeightError."""
    if tensor.dim() != 2 or not tensor.is_floating_point():
        raise WeightError(f"a dense weight is a floating [N, K], not {tensor.dtype} {list(tensor.shape)}")
    return Weight("dense", {"w": tensor}, (tensor.shape[0], tensor.shape[1]))


GGUF_BLOCK_BYTES = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}
"""GGUF kinds that stay packed, and the bytes of a block of 32."""


def from_gguf(kind: str, blocks: np.ndarray) -> Weight:
    """A packed weight from GGUF blocks [N, K/32 * block bytes] uint8, bit for bit: nothing is requantised.

    Q4_0 (q - 8) * d becomes q4_1 with m = -8 d, which float16 holds exactly. Raises WeightError.
    """
    size = GGUF_BLOCK_BYTES.get(kind)
    if size is None:
        raise WeightError(f"no packed form for GGUF {kind} (packed: {', '.join(GGUF_BLOCK_BYTES)})")
    if blocks.dtype != np.uint8 or blocks.ndim != 2 or blocks.shape[1] == 0 or blocks.shape[1] % size:
        raise WeightError(f"{kind} blocks are uint8 [N, n * {size}], not {blocks.dtype} {list(blocks.shape)}")
    rows, count = blocks.shape[0], blocks.shape[1] // size
    view = np.ascontiguousarray(blocks).reshape(rows, count, size)
    shape = (rows, count * BLOCK)
    scale = torch.from_numpy(view[:, :, 0:2].copy().view(np.float16)[:, :, 0])
    if kind == "Q8_0":
        return Weight("q8_0", {"qs": torch.from_numpy(view[:, :, 2:].copy().view(np.int8)), "d": scale}, shape)
    if kind == "Q4_0":
        qs = torch.from_numpy(view[:, :, 2:].copy())
        return Weight("q4_1", {"qs": qs, "d": scale, "m": scale * -8}, shape)
    low = torch.from_numpy(view[:, :, 2:4].copy().view(np.float16)[:, :, 0])
    return Weight("q4_1", {"qs": torch.from_numpy(view[:, :, 4:].copy()), "d": scale, "m": low}, shape)


def quantize(tensor: torch.Tensor, method: str) -> Weight:
    """Rounds a dense [N, K] to q8_0, q4_1 (blocks of 32; K must be a multiple) or int8 (one scale a row).

    Raises WeightError.
    """
    rows, columns = dense(tensor).shape
    values = tensor.to(torch.float32)
    if method == "int8":
        scale = values.abs().amax(dim=1).clamp_min(1e-30) / 127
        qs = (values / scale.unsqueeze(1)).round().clamp(-127, 127).to(torch.int8)
        return Weight("int8", {"qs": qs, "d": scale}, (rows, columns))
    if method not in ("q8_0", "q4_1"):
        raise WeightError(f"cannot quantize to {method!r} (q8_0, q4_1 or int8)")
    if columns % BLOCK:
        raise WeightError(f"{method} needs a multiple of {BLOCK} columns, not {columns}")
    blocks = values.reshape(rows, columns // BLOCK, BLOCK)
    if method == "q8_0":
        scale16 = (blocks.abs().amax(dim=2) / 127).to(torch.float16)
        inverse = _inverse(scale16)
        qs = (blocks * inverse.unsqueeze(2)).round().clamp(-127, 127).to(torch.int8)
        return Weight("q8_0", {"qs": qs, "d": scale16}, (rows, columns))
    low = blocks.amin(dim=2).to(torch.float16)
    scale16 = ((blocks.amax(dim=2) - low.to(torch.float32)) / 15).to(torch.float16)
    inverse = _inverse(scale16)
    levels = ((blocks - low.to(torch.float32).unsqueeze(2)) * inverse.unsqueeze(2)).round().clamp(0, 15)
    q = levels.to(torch.uint8)
    half = BLOCK // 2
    return Weight("q4_1", {"qs": q[:, :, :half] | (q[:, :, half:] << 4), "d": scale16, "m": low}, (rows, columns))


def _inverse(scale: torch.Tensor) -> torch.Tensor:
    full = scale.to(torch.float32)
    return torch.where(full > 0, 1 / full, torch.zeros_like(full))


def concat_rows(weights: Sequence[Weight]) -> Weight:
    """One weight whose outputs are those of `weights` one after the other (q, k, v; gate, up). Raises WeightError."""
    if not weights:
        raise WeightError("nothing to concatenate")
    parts = [weight.as_rows() for weight in weights]
    first = parts[0]
    for part in parts[1:]:
        if part.method != first.method or part.shape[1] != first.shape[1]:
            raise WeightError(
                f"cannot fuse {first.method} [*, {first.shape[1]}] with {part.method} [*, {part.shape[1]}]"
            )
    tensors = {name: torch.cat([part.tensors[name] for part in parts]) for name in first.tensors}
    return Weight(first.method, tensors, (sum(part.shape[0] for part in parts), first.shape[1]))


def permute_rows(weight: Weight, order: torch.Tensor) -> Weight:
    """Row i of the result is row order[i]; `order` may also pick a part of the rows. int64 [N']."""
    rows = weight.as_rows()
    tensors = {name: tensor.index_select(0, order) for name, tensor in rows.tensors.items()}
    return Weight(rows.method, tensors, (len(order), rows.shape[1]))
