"""What the device at hand can do. Asks torch only about CUDA devices."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76
"""CUdevice_attribute."""


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


_STAND_INS: dict[str, Platform] = {}


def stand_in(device: str, platform: Platform) -> None:
    """Lets a device that computes nothing, torch's `meta`, count as `platform`: kernels are then chosen as for that."""
    _STAND_INS[device] = platform


def detect(device: str) -> Platform:
    """The platform behind `cpu`, `cuda`, `cuda:N` or a stand-in. Raises ValueError for any other device."""
    if device in _STAND_INS:
        return _STAND_INS[device]
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


class DriverError(Exception):
    """The CUDA driver is not there, or does not answer."""


def ask_driver(index: int) -> tuple[Platform, int]:
    """The platform of cuda:index and its memory in bytes, without torch and without a context on the device.

    Raises DriverError.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DriverError(str(error)) from error

    def call(function: str, *arguments: Any) -> None:
        if code := getattr(driver, function)(*arguments):
            raise DriverError(f"{function} answers {code}")

    device, number, memory = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    name = ctypes.create_string_buffer(256)
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), index)
    call("cuDeviceGetName", name, len(name), device)
    call("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
    capability = []
    for attribute in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR):
        call("cuDeviceGetAttribute", ctypes.byref(number), attribute, device)
        capability.append(number.value)
    return Platform("cuda", name.value.decode(), capability=(capability[0], capability[1])), memory.value
