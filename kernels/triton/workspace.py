"""Scratch memory that kernels keep between launches, one set a device.

Counters are zero before and after every launch. Buffers only grow, and an outgrown one stays alive, since a CUDA graph
may hold its address. One step runs at a time on a device, so all kernels share one set, but for those that run beside
others.
"""

from __future__ import annotations

import torch

COUNTERS = 65536


class Workspace:
    """`counters` int32 [COUNTERS], all zero, and `floats(n)`: at least n float32 of scratch."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.counters = torch.zeros(COUNTERS, dtype=torch.int32, device=device)
        self._floats = torch.empty(1 << 20, dtype=torch.float32, device=device)
        self._outgrown: list[torch.Tensor] = []

    def floats(self, count: int) -> torch.Tensor:
        if self._floats.numel() < count:
            self._outgrown.append(self._floats)
            self._floats = torch.empty(1 << (count - 1).bit_length(), dtype=torch.float32, device=self.device)
        return self._floats


_WORKSPACES: dict[tuple[torch.device, str], Workspace] = {}


def workspace(device: torch.device, owner: str = "") -> Workspace:
    """The device's scratch; made at the first call, which must not be under graph capture.

    A kernel that runs beside its neighbours has an `owner`'s, not theirs.
    """
    found = _WORKSPACES.get((device, owner))
    if found is None:
        found = _WORKSPACES[device, owner] = Workspace(device)
    return found
