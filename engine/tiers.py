"""The host tier's memory and the copies between tiers that a plan orders.

A host page is one run of memory: every layer's K and V of one page, so that it travels, and is stored on disk, as one
block. Copies run in a thread of their own; on a GPU also on a stream of their own, behind what was launched before
them. Knows pages and keys; nothing of requests, nor of why a page moves.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch

from tsd.engine.batch import KVCache
from tsd.scheduler.types import Move

log = logging.getLogger("tsd.engine")
_CHUNK = 8
"""Pages gathered at a time on their way to or from a GPU."""


class BlockStore(Protocol):
    """Blocks on disk by key. Faults of the disk are answers, not exceptions."""

    def read(self, key: bytes, into: memoryview) -> bool: ...

    def write(self, key: bytes, parts: Sequence[memoryview]) -> bool: ...

    def discard(self, keys: Iterable[bytes]) -> None: ...


class MoveResult(NamedTuple):
    move_id: int
    ok: bool
    good: int = -1


class HostPages:
    """`count` pages [layers, 2, page_size, kv_heads, head_dim] each, pinned where a GPU copies from them."""

    def __init__(self, cache: KVCache, count: int) -> None:
        first = cache.k[0]
        shape = (count, len(cache.k), 2, *first.shape[1:])
        if first.device.type == "cuda":
            self.pages = torch.empty(shape, dtype=first.dtype, pin_memory=True)
        else:
            size = torch.Size(shape).numel() * first.dtype.itemsize
            # Zeroed by the kernel as it is first used: what no page needs is not taken.
            self.pages = torch.from_numpy(np.zeros(size, np.uint8)).view(first.dtype).view(shape)
        self._bytes = self.pages.view(count, -1).view(torch.uint8) if count else self.pages

    @staticmethod
    def page_bytes(cache: KVCache) -> int:
        first = cache.k[0]
        return 2 * len(cache.k) * first[0].numel() * first.dtype.itemsize

    def block(self, page: int) -> memoryview:
        """One page's bytes."""
        return self._bytes[page].numpy().data


class Mover:
    """Runs moves in order and tells each one's end to `done`, from its own thread."""

    def __init__(
        self, cache: KVCache, host: HostPages, disk: BlockStore | None, done: Callable[[MoveResult], None]
    ) -> None:
        self._cache = cache
        self._host = host
        self._disk = disk
        self._done = done
        self._device = cache.k[0].device
        self._orders: queue.SimpleQueue[tuple[Move, torch.cuda.Event | None] | None] = queue.SimpleQueue()
        self._stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None
        self._thread = threading.Thread(target=self._work, name="tsd-mover", daemon=True)
        self._thread.start()

    def submit(self, moves: list[Move]) -> None:
        """Queues moves behind what the current CUDA stream has been given so far."""
        event = None
        if self._stream is not None:
            event = torch.cuda.Event()
            event.record()
        for move in moves:
            self._orders.put((move, event))

    def close(self) -> None:
        self._orders.put(None)
        self._thread.join(timeout=10.0)

    def _work(self) -> None:
        with torch.inference_mode():
            while (order := self._orders.get()) is not None:
                move, event = order
                try:
                    result = self._run(move, event)
                except Exception:
                    # A move that fails costs a cached page, not the engine; the scheduler forgets what it was.
                    log.exception("a %s of %d pages failed", move.kind, len(move.keys))
                    result = MoveResult(move.move_id, False)
                self._done(result)

    def _run(self, move: Move, event: torch.cuda.Event | None) -> MoveResult:
        match move.kind:
            case "write_back" | "load_back":
                copy = self._write_back if move.kind == "write_back" else self._load_back
                if self._stream is None:
                    copy(move)
                else:
                    with torch.cuda.stream(self._stream):
                        if event is not None:
                            self._stream.wait_event(event)
                        copy(move)
                        self._stream.synchronize()
                return MoveResult(move.move_id, True)
            case "prefetch":
                return self._prefetch(move)
            case "store":
                assert self._disk is not None
                sound = [
                    self._disk.write(key, [self._host.block(int(page))])
                    for key, page in zip(move.keys, move.sources, strict=True)
                ]
                return MoveResult(move.move_id, all(sound))
            case "discard":
                assert self._disk is not None
                self._disk.discard(move.keys)
                return MoveResult(move.move_id, True)
        raise ValueError(f"unknown kind of move {move.kind}")

    def _prefetch(self, move: Move) -> MoveResult:
        """Disk to host, up to the first block that is missing or rotten."""
        assert self._disk is not None
        good = 0
        for key, page in zip(move.keys, move.targets, strict=True):
            if not self._disk.read(key, self._host.block(int(page))):
                break
            good += 1
        return MoveResult(move.move_id, good == len(move.keys), good)

    def _write_back(self, move: Move) -> None:
        for first in range(0, len(move.sources), _CHUNK):
            sources = self._index(move.sources[first : first + _CHUNK])
            targets = torch.from_numpy(move.targets[first : first + _CHUNK].astype(np.int64))
            gathered = torch.stack(
                [
                    torch.stack((k.index_select(0, sources), v.index_select(0, sources)), dim=1)
                    for k, v in zip(self._cache.k, self._cache.v, strict=True)
                ],
                dim=1,
            )
            for place, page in enumerate(targets.tolist()):
                self._host.pages[page].copy_(gathered[place], non_blocking=True)

    def _load_back(self, move: Move) -> None:
        for first in range(0, len(move.sources), _CHUNK):
            pages = move.sources[first : first + _CHUNK].tolist()
            targets = self._index(move.targets[first : first + _CHUNK])
            gathered = torch.empty((len(pages), *self._host.pages.shape[1:]), dtype=self._host.pages.dtype)
            if self._stream is not None:
                gathered = gathered.to(self._device)
            for place, page in enumerate(pages):
                gathered[place].copy_(self._host.pages[page], non_blocking=True)
            for layer, (k, v) in enumerate(zip(self._cache.k, self._cache.v, strict=True)):
                k.index_copy_(0, targets, gathered[:, layer, 0])
                v.index_copy_(0, targets, gathered[:, layer, 1])

    def _index(self, pages: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(pages.astype(np.int64)).to(self._device)
