"""A Hugging Face folder of safetensors files, sharded or not. Files are mapped and read only when asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from tsd.engine.model_errors import WeightsError
from tsd.engine.weights.source import TensorInfo, WeightSource
from tsd.engine.weights.staging import let_go, to_device

INDEX = "model.safetensors.index.json"
_FLOATS = ("F32", "BF16", "F16", "F64")


class SafetensorsSource(WeightSource):
    """Reads `folder`/model.safetensors, or the shards its index names. Raises WeightsError for any damage."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.path = str(folder)
        self._index: dict[str, TensorInfo] = {}
        self._files: dict[str, Any] = {}
        weight_map = self._weight_map()
        for file in sorted(set(weight_map.values())) if weight_map else self._plain_files():
            self._open(file)
        for name, shard in weight_map.items():
            if name not in self._index:
                raise WeightsError(self.folder / shard, f"missing, though {INDEX} says it is here", name)

    @property
    def index(self) -> dict[str, TensorInfo]:
        return self._index

    def check(self, expected: Mapping[str, tuple[int, ...]], ignored: Callable[[str], bool]) -> None:
        super().check(expected, ignored)
        for name in expected:
            info = self._index[name]
            if info.kind not in _FLOATS:
                raise WeightsError(info.file, f"has type {info.kind}; supported are {', '.join(_FLOATS)}", name)

    def read_into(self, name: str, out: torch.Tensor) -> None:
        info = self._index[name]
        try:
            tensor = self._files[info.file].get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise WeightsError(info.file, f"cannot be read: {error}", name) from error
        to_device(tensor, out)

    def close(self) -> None:
        self._files.clear()
        let_go()

    def _weight_map(self) -> dict[str, str]:
        """Tensor name to file name, from the index; empty where there is no index."""
        path = self.folder / INDEX
        if not path.exists():
            return {}
        try:
            weight_map = json.loads(path.read_bytes())["weight_map"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise WeightsError(path, f"the index is corrupt: {error!r}") from error
        if not isinstance(weight_map, dict) or not weight_map:
            raise WeightsError(path, "the index's weight_map must be a non-empty object")
        for name, file in weight_map.items():
            if not isinstance(file, str) or Path(file).name != file:
                raise WeightsError(path, f"the index names the file {file!r}, which is not in the folder", name)
        return weight_map

    def _plain_files(self) -> list[str]:
        single = self.folder / "model.safetensors"
        files = [single] if single.exists() else sorted(self.folder.glob("*.safetensors"))
        if not files:
            raise WeightsError(self.folder, "the folder has no .safetensors file")
        return [file.name for file in files]

    def _open(self, file: str) -> None:
        path = str(self.folder / file)
        if not Path(path).exists():
            raise WeightsError(path, f"the file is missing, though {INDEX} names it")
        try:
            handle = safe_open(path, framework="pt", device="cpu")
            for name in handle.keys():  # noqa: SIM118 (the handle is no mapping)
                if name in self._index:
                    raise WeightsError(path, f"is also in {self._index[name].file}", name)
                view = handle.get_slice(name)
                self._index[name] = TensorInfo(tuple(view.get_shape()), view.get_dtype(), path)
        except (SafetensorError, OSError, ValueError) as error:
            raise WeightsError(path, f"corrupt or truncated: {error}") from error
        self._files[path] = handle
