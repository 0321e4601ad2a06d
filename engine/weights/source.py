"""What a model asks of the place its weights come from. Sources know names and bytes, never layers or kernels."""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

from tsd.engine.model_errors import WeightsError
from tsd.kernels.weight import Weight


class TensorInfo(NamedTuple):
    """What a file says of one tensor. `kind` is the file's own name for its type: F32, BF16, Q4_1, …"""

    shape: tuple[int, ...]
    kind: str
    file: str


class WeightSource(ABC):
    """Named tensors under their Hugging Face names, read on demand by several threads at once."""

    path: str

    @property
    @abstractmethod
    def index(self) -> Mapping[str, TensorInfo]:
        """Every tensor there is."""

    @abstractmethod
    def read_into(self, name: str, out: torch.Tensor) -> None:
        """Fills `out` (the tensor's shape, any float dtype and device), converting or de-quantising."""

    def packed_method(self, name: str) -> str:
        """The packed method (q4_1, q8_0) in which `read_packed` can give this tensor, or "" (also for no tensor)."""
        return ""

    def read_packed(self, name: str) -> Weight:
        """The tensor with its quantised blocks bit for bit as stored, on the CPU, rows in the model's order."""
        raise NotImplementedError(f"{type(self).__name__} holds no packed tensors")

    def close(self) -> None:  # noqa: B027 (most sources have nothing to close)
        """Lets go of the files. Tensors already read stay valid."""

    def check(self, expected: Mapping[str, tuple[int, ...]], ignored: Callable[[str], bool]) -> None:
        """Raises WeightsError unless the source has exactly the expected tensors, apart from ignored extra ones."""
        index = self.index
        extra = [name for name in index if name not in expected and not ignored(name)]
        for name, shape in expected.items():
            info = index.get(name)
            if info is None:
                close = difflib.get_close_matches(name, extra, n=1, cutoff=0.8)
                hint = f" (the file has {close[0]!r}, which is not expected)" if close else ""
                raise WeightsError(self.path, f"missing; the configuration asks for {list(shape)}{hint}", name)
            if tuple(info.shape) != tuple(shape):
                raise WeightsError(info.file, f"has shape {list(info.shape)}, must be {list(shape)}", name)
        if extra:
            more = f" (and {len(extra) - 1} more)" if len(extra) > 1 else ""
            raise WeightsError(index[extra[0]].file, f"is not part of this model{more}", extra[0])
