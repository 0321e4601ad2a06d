"""What the device at hand can do. Asks torch only about CUDA devices."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class Platform:
    """A device, as far as choosing a kernel goes."""

    kind: str
    """cpu or cuda."""
    name: str
    capability: tuple[int, int] = (0, 0)
    """CUDA compute capability; zeros on a CPU."""
    features: frozenset[str] = frozenset()
    """Instruction sets of a CPU, as /proc/cpuinfo spells them."""


def detect(device: str) -> Platform:
    """The platform behind `cpu`, `cuda` or `cuda:N`. Raises ValueError for any other device."""
    kind, _, index = device.partition(":")
    if kind == "cpu":
        return _cpu()
    if kind == "cuda":
        return _cuda(int(index) if index else 0)
    raise ValueError(f"no kernels for device {device!r}: expected cpu, cuda or cuda:N")


@cache
def _cpu() -> Platform:
    info = Path("/proc/cpuinfo")
    flags: frozenset[str] = frozenset()
    name = "cpu"
    if info.exists():
        for line in info.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                name = value.strip()
            elif key.strip() in ("flags", "Features"):
                flags = frozenset(value.split())
                break
    return Platform("cpu", name, features=flags)


@cache
def _cuda(index: int) -> Platform:
    import torch

    properties = torch.cuda.get_device_properties(index)
    return Platform("cuda", properties.name, capability=(properties.major, properties.minor))
