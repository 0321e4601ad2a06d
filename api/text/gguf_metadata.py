"""Reads the key-value header of a GGUF file. Knows no tensor and no meaning of a key.

Layout (little-endian, version 2 and 3): magic `GGUF`, u32 version, u64 tensors, u64 pairs, then the pairs:
string key, u32 type, value. A string is u64 length + UTF-8; an array is u32 type, u64 count, values.
"""

from __future__ import annotations

import mmap
import struct
from array import array
from pathlib import Path
from typing import Any

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


class GgufError(ValueError):
    """Not a GGUF file, or a header that ends early."""


def read_metadata(path: str | Path, prefix: str = "") -> dict[str, Any]:
    """The pairs whose key starts with `prefix`. Numeric arrays come as `array`, string arrays as lists of str."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return _read(data, prefix)
        except (struct.error, IndexError) as error:
            raise GgufError(f"{path}: the GGUF header ends early") from error


def _read(data: mmap.mmap, prefix: str) -> dict[str, Any]:
    if data[:4] != b"GGUF":
        raise GgufError("not a GGUF file")
    version, _, pairs = struct.unpack_from("<IQQ", data, 4)
    if version not in (2, 3):
        raise GgufError(f"GGUF version {version} is not supported")
    found: dict[str, Any] = {}
    position = 24
    for _ in range(pairs):
        key, position = _string(data, position)
        (kind,) = struct.unpack_from("<I", data, position)
        value, position = _value(data, position + 4, kind)
        if key.startswith(prefix):
            found[key] = value
    return found


def _string(data: mmap.mmap, position: int) -> tuple[str, int]:
    (size,) = struct.unpack_from("<Q", data, position)
    end = position + 8 + size
    if end > len(data):
        raise IndexError(end)
    return data[position + 8 : end].decode("utf-8", "replace"), end


def _value(data: mmap.mmap, position: int, kind: int) -> tuple[Any, int]:
    if kind == _STRING:
        return _string(data, position)
    if kind == _ARRAY:
        return _items(data, position)
    code = _SCALARS.get(kind)
    if code is None:
        raise GgufError(f"GGUF value type {kind} is unknown")
    return struct.unpack_from("<" + code, data, position)[0], position + struct.calcsize(code)


def _items(data: mmap.mmap, position: int) -> tuple[Any, int]:
    kind, count = struct.unpack_from("<IQ", data, position)
    position += 12
    if kind == _STRING:
        texts = []
        for _ in range(count):
            text, position = _string(data, position)
            texts.append(text)
        return texts, position
    if kind == _ARRAY:
        raise GgufError("nested GGUF arrays are not supported")
    code = _SCALARS.get(kind)
    if code is None:
        raise GgufError(f"GGUF array type {kind} is unknown")
    end = position + count * struct.calcsize(code)
    if end > len(data):
        raise IndexError(end)
    if code == "?":
        return [bool(byte) for byte in data[position:end]], end
    return array(code, data[position:end]), end
