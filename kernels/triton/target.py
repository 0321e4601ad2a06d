"""Whether kernels on a device are launched as dependents of the one before (see `pdl.py`). Asks once."""

from __future__ import annotations

from functools import cache

import torch

from tsd.kernels.platform import detect


@cache
def dependent(device: torch.device) -> tuple[bool, dict[str, bool]]:
    """The kernels' PDL constant and the launch options that go with it: on from compute capability 9.0."""
    platform = detect(str(device))
    if platform.kind == "cuda" and platform.capability >= (9, 0):
        return True, {"launch_pdl": True}
    return False, {}


def dot_precision(dtype: torch.dtype) -> str:
    """How `tl.dot` multiplies: float32 stays float32, since tf32 would lose what the caller asked for."""
    return "ieee" if dtype == torch.float32 else "tf32"


@cache
def has_timer(device: torch.device) -> bool:
    """Whether kernels there can tell the time (`%globaltimer`); Triton's interpreter cannot."""
    return detect(str(device)).kind == "cuda"
