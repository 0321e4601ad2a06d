"""A load-back on its way, layer group by layer group, as a forward pass sees it.

The mover fills layers in order and marks each group that is in place; the forward pass, which needs them in the same
order, waits for a group before the first of its layers. On a GPU a mark is an event between two streams and the host
waits for nothing; on a CPU it is an event between two threads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

import torch

GROUPS = 4
"""At most so many groups a copy: the first quarter in place is enough to begin with."""
GROUP_BYTES = 16 << 20
"""At least so many bytes a group: 0.3 ms over a PCIe link of 50 GB/s, several times what starting a step costs."""


class LayerLoad:
    """Groups of layers [bounds[g], bounds[g + 1]), each with its mark."""

    def __init__(self, layers: int, size: int, device: torch.device) -> None:
        """`size`: bytes of the whole copy."""
        groups = max(1, min(GROUPS, layers, size // GROUP_BYTES))
        self.bounds = [layers * g // groups for g in range(groups + 1)]
        # Blocking: the mover sleeps until the copy is done.
        on_gpu = device.type == "cuda"
        self._marks: list[torch.cuda.Event | threading.Event] = [
            torch.cuda.Event(blocking=True) if on_gpu else threading.Event() for _ in range(groups)
        ]
        self.done = threading.Event()
        """Set once the end of the copy has been told."""
        self._group_of = {first: g for g, first in enumerate(self.bounds[:-1])}

    @property
    def groups(self) -> list[tuple[int, int]]:
        """(first layer, end) of each."""
        return list(zip(self.bounds, self.bounds[1:], strict=False))

    def mark(self, group: int) -> None:
        """The mover: the group's copies are done, or, on a GPU, queued on the current stream."""
        mark = self._marks[group]
        if isinstance(mark, threading.Event):
            mark.set()
        else:
            mark.record()

    def sleep(self, group: int) -> None:
        """The mover: returns once the group's copies are done."""
        mark = self._marks[group]
        if isinstance(mark, threading.Event):
            mark.wait()
        else:
            mark.synchronize()

    def wait(self, layer: int) -> None:
        """The forward pass, before `layer` runs: waits for its group where it is the first of one.

        On a GPU what waits is the current stream.
        """
        group = self._group_of.get(layer)
        if group is not None:
            self._marks[group].wait()


class LayerWaits:
    """What one step waits for: a callable for `ForwardBatch.before_layer`."""

    def __init__(self, loads: Iterable[LayerLoad]) -> None:
        self._loads = list(loads)

    def __call__(self, layer: int) -> None:
        for load in self._loads:
            load.wait(layer)
