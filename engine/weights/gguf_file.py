"""Reads the structure of a GGUF file: metadata and where each tensor lies. Knows nothing about models or torch.

Every length is checked against the file before it is used, so a damaged or hostile header ends in WeightsError.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little-endian).
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from tsd.engine.model_errors import WeightsError

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_MAX_DEPTH = 4

BLOCKS = {
    # type number: (name, weights in a block, bytes in a block)
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    20: ("IQ4_NL", 32, 18),
    23: ("IQ4_XS", 256, 136),
    30: ("BF16", 1, 2),
}


class GGUFTensor(NamedTuple):
    """One tensor's place. `shape` is in torch order (rows first); `offset` and `size` are bytes of the file."""

    name: str
    shape: tuple[int, ...]
    kind: str
    """A name of BLOCKS: F32, Q4_1, …"""
    offset: int
    size: int


class GGUFFile:
    """An open GGUF file, mapped read-only. Close it, or use it as a context manager."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            with self.path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise WeightsError(self.path, f"cannot be read: {error}") from error
        try:
            self.metadata: dict[str, Any] = {}
            self.tensors: dict[str, GGUFTensor] = {}
            self._read_header()
        except WeightsError:
            self._map.close()
            raise
        except (UnicodeDecodeError, OverflowError) as error:
            self._map.close()
            raise WeightsError(self.path, f"the header is corrupt: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Unmaps the file; arrays given out by `data` must be gone by then."""
        self._map.close()

    def data(self, name: str) -> np.ndarray:
        """The tensor's bytes, [rows, bytes per row] uint8 ([1, bytes] for a vector), not copied."""
        tensor = self.tensors[name]
        rows = math.prod(tensor.shape[:-1]) if len(tensor.shape) > 1 else 1
        flat = np.frombuffer(self._map, dtype=np.uint8, count=tensor.size, offset=tensor.offset)
        return flat.reshape(rows, tensor.size // rows)

    def config_facts(self) -> dict[str, Any]:
        """What a model configuration needs and only the tensors tell."""
        facts: dict[str, Any] = {
            "tied": "output.weight" not in self.tensors,
            "attention_bias": "blk.0.attn_output.bias" in self.tensors,
            "mlp_bias": "blk.0.ffn_down.bias" in self.tensors,
        }
        embedding = self.tensors.get("token_embd.weight")
        if embedding is not None:
            facts["vocab_size"] = embedding.shape[0]
        factors = self.tensors.get("rope_freqs.weight")
        if factors is not None:
            if factors.kind != "F32":
                raise WeightsError(self.path, f"must be F32, not {factors.kind}", factors.name)
            facts["rope_factors"] = tuple(np.frombuffer(self.data(factors.name).tobytes(), np.float32).tolist())
        return facts

    def _read_header(self) -> None:
        cursor = _Cursor(self._map, self.path)
        if cursor.take(4) != b"GGUF":
            raise WeightsError(self.path, "is not a GGUF file (it does not start with 'GGUF')")
        version = cursor.scalar("<I")
        if version not in (2, 3):
            raise WeightsError(self.path, f"GGUF version {version} is not supported (2 and 3 are)")
        tensor_count, value_count = cursor.scalar("<Q"), cursor.scalar("<Q")
        for _ in range(value_count):
            key = cursor.string()
            self.metadata[key] = cursor.value(cursor.scalar("<I"))
        raw = [self._read_tensor(cursor) for _ in range(tensor_count)]
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise WeightsError(self.path, f"general.alignment must be a power of two, not {alignment!r}")
        start = -(-cursor.at // alignment) * alignment
        for tensor in raw:
            placed = tensor._replace(offset=start + tensor.offset)
            if placed.name in self.tensors:
                raise WeightsError(self.path, "appears twice", placed.name)
            if placed.offset + placed.size > len(self._map):
                missing = placed.offset + placed.size - len(self._map)
                raise WeightsError(self.path, f"the file is truncated: {missing} bytes are missing", placed.name)
            self.tensors[placed.name] = placed

    def _read_tensor(self, cursor: _Cursor) -> GGUFTensor:
        name = cursor.string()
        dims = cursor.scalar("<I")
        if not 1 <= dims <= 4:
            raise WeightsError(self.path, f"has {dims} dimensions", name)
        shape = tuple(reversed([cursor.scalar("<Q") for _ in range(dims)]))
        number, offset = cursor.scalar("<I"), cursor.scalar("<Q")
        if number not in BLOCKS:
            raise WeightsError(self.path, f"has the unknown type number {number}", name)
        kind, block, size = BLOCKS[number]
        if 0 in shape or shape[-1] % block:
            raise WeightsError(self.path, f"shape {list(shape)} does not divide into {kind} blocks of {block}", name)
        return GGUFTensor(name, shape, kind, offset, math.prod(shape) // block * size)


class _Cursor:
    """Reads forward through the header and refuses to leave the file."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data = data
        self.path = path
        self.at = 0

    def take(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self.data):
            raise WeightsError(self.path, f"the header is corrupt or truncated at byte {self.at}")
        taken = self.data[self.at : end]
        self.at = end
        return taken

    def scalar(self, code: str) -> Any:
        return struct.unpack(code, self.take(struct.calcsize(code)))[0]

    def string(self) -> str:
        return self.take(self.scalar("<Q")).decode()

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY or depth > _MAX_DEPTH:
            raise WeightsError(self.path, f"the header is corrupt: value type {kind} at byte {self.at}")
        inner, count = self.scalar("<I"), self.scalar("<Q")
        if inner in _SCALARS:
            code = _SCALARS[inner]
            size = struct.calcsize(code)
            return list(struct.unpack(f"<{count}{code[1]}", self.take(count * size))) if count else []
        if count > len(self.data) - self.at:
            raise WeightsError(self.path, f"the header is corrupt: an array of {count} at byte {self.at}")
        read: Callable[[], Any] = self.string if inner == _STRING else lambda: self.value(inner, depth + 1)
        return [read() for _ in range(count)]
