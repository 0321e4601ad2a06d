"""Random weights from a configuration alone, drawn where they will live. For benchmarks and tests, without any file."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping

import torch

from tsd.engine.weights.source import TensorInfo, WeightSource

STD = 0.02
_SMALL = 1 << 20


class DummySource(WeightSource):
    """N(0, 0.02) matrices, unit norms, zero biases: activations keep their size, so logits stay finite at any depth.

    A tensor's values depend on (seed, its name) only. Tensors of up to 2^20 elements are drawn on the CPU and are the
    same on every device; larger ones are drawn on their device in their own type, so an 8B model takes seconds.
    """

    path = "dummy weights"

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    @property
    def index(self) -> Mapping[str, TensorInfo]:
        return {}

    def check(self, expected: Mapping[str, tuple[int, ...]], ignored: Callable[[str], bool]) -> None:
        """Whatever is expected is there."""

    def read_into(self, name: str, out: torch.Tensor) -> None:
        if name.endswith("norm.weight"):
            out.fill_(1.0)
            return
        if name.endswith(".bias"):
            out.zero_()
            return
        seed = zlib.crc32(f"{self.seed}/{name}".encode())  # 32 bits: all that torch's CPU generator reads
        if out.numel() <= _SMALL:
            drawn = torch.empty(out.shape).normal_(0.0, STD, generator=torch.Generator().manual_seed(seed))
            out.copy_(drawn)
        else:
            out.normal_(0.0, STD, generator=torch.Generator(out.device).manual_seed(seed))
