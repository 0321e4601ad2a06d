"""From mapped files to a GPU, through pinned buffers that take turns: the host's copy and the bus work at once.

Without them the driver stages each copy in a small buffer of its own (H200, files in the page cache: 7.5 GB/s with one
thread or with eight, 20 GB/s this way). One copy at a time: several at once gain nothing.
"""

from __future__ import annotations

import threading

import torch

CHUNK = 8 << 20
"""Bytes of a buffer; four times as much halves the speed."""
BUFFERS = 2


class Stager:
    """Copies to one device. May be called from several threads."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._lock = threading.Lock()
        self._stream = torch.cuda.Stream(device)
        self._buffers = [torch.empty(CHUNK, dtype=torch.uint8, pin_memory=True) for _ in range(BUFFERS)]
        self._sent = [torch.cuda.Event() for _ in range(BUFFERS)]

    def copy(self, source: torch.Tensor, out: torch.Tensor) -> None:
        """out = source, both contiguous and of one type, `source` on the host; `out` is there on return."""
        theirs, ours = _bytes(source), _bytes(out)
        with self._lock, torch.cuda.stream(self._stream):
            # The memory may have been another tensor's a moment ago.
            self._stream.wait_stream(torch.cuda.default_stream(self.device))
            for turn, start in enumerate(range(0, len(theirs), CHUNK)):
                buffer, sent = self._buffers[turn % BUFFERS], self._sent[turn % BUFFERS]
                sent.synchronize()
                part = theirs[start : start + CHUNK]
                buffer[: len(part)].copy_(part)
                ours[start : start + len(part)].copy_(buffer[: len(part)], non_blocking=True)
                sent.record(self._stream)
            self._stream.synchronize()


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)


_STAGERS: dict[torch.device, Stager] = {}
_MAKING = threading.Lock()


def to_device(source: torch.Tensor, out: torch.Tensor) -> None:
    """out = source, for any two tensors of one shape; by way of pinned buffers where that is faster."""
    direct = out.device.type != "cuda" or source.dtype != out.dtype or source.nbytes < CHUNK
    if direct or not (source.is_contiguous() and out.is_contiguous()):
        out.copy_(source)
        return
    with _MAKING:
        stager = _STAGERS.get(out.device)
        if stager is None:
            stager = _STAGERS[out.device] = Stager(out.device)
    stager.copy(source, out)


def let_go() -> None:
    """Frees the buffers, once loading is over."""
    with _MAKING:
        _STAGERS.clear()
