"""The host tier's memory and the copies between tiers that a plan orders.

A host page is one run of memory: every layer's K and V of one page, so that it is stored on disk as one block and each
group of its layers is one run too. Copies between host and device run in one thread, on a GPU also on a stream of their
own, behind what was launched before them; files are read and written in another, so that neither waits for the other.
Knows pages and keys; nothing of requests, nor of why a page moves.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np
import torch

from tsd.engine.batch import KVCache
from tsd.engine.layer_load import LayerLoad, LayerWaits
from tsd.scheduler.types import LayersLanded, Move, MoveDone

log = logging.getLogger("tsd.engine")
_STAGE_BYTES = 16 << 20
"""Gathered at a time on its way to or from a GPU."""


class BlockStore(Protocol):
    """Blocks on disk by key. Faults of the disk are answers, not exceptions."""

    def read(self, key: bytes, into: memoryview) -> bool: ...

    def write(self, key: bytes, parts: Sequence[memoryview]) -> bool: ...

    def discard(self, keys: Iterable[bytes]) -> None: ...


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
    """Runs moves and tells `done` what became of each, from its own threads.

    Copies between host and device are done in order, and so is what concerns files.
    """

    def __init__(
        self, cache: KVCache, host: HostPages, disk: BlockStore | None, done: Callable[[MoveDone | LayersLanded], None]
    ) -> None:
        self._cache = cache
        self._host = host
        self._disk = disk
        self._done = done
        self._device = cache.k[0].device
        self._loads: dict[int, LayerLoad] = {}
        """By move, until its end has been told."""
        self._stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None
        self._copies: queue.SimpleQueue[tuple[Move, torch.cuda.Event | None] | None] = queue.SimpleQueue()
        self._files: queue.SimpleQueue[tuple[Move, torch.cuda.Event | None] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, args=(orders,), name=name, daemon=True)
            for orders, name in ((self._copies, "tsd-mover"), (self._files, "tsd-files"))
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, moves: list[Move]) -> None:
        """Queues moves; copies go behind what the current CUDA stream has been given so far."""
        event = None
        if self._stream is not None:
            event = torch.cuda.Event()
            event.record()
        for move in moves:
            if move.kind == "load_back":
                size = len(move.sources) * self._host.page_bytes(self._cache)
                self._loads[move.move_id] = LayerLoad(len(self._cache.k), size, self._device)
            orders = self._copies if move.kind in ("write_back", "load_back") else self._files
            orders.put((move, event))

    def waits(self, moves: Iterable[int]) -> LayerWaits:
        """What a step that reads what these load-backs bring calls before each layer."""
        return LayerWaits(load for move in moves if (load := self._loads.get(move)) is not None)

    def finish(self, moves: Iterable[int]) -> None:
        """Returns once the end of these load-backs, of which the last layers are there, has been told."""
        for move in moves:
            if (load := self._loads.get(move)) is not None:
                load.done.wait()

    def close(self) -> None:
        self._copies.put(None)
        self._files.put(None)
        for thread in self._threads:
            thread.join(timeout=10.0)

    def _work(self, orders: queue.SimpleQueue[tuple[Move, torch.cuda.Event | None] | None]) -> None:
        with torch.inference_mode():
            while (order := orders.get()) is not None:
                move, event = order
                try:
                    result = self._run(move, event)
                except Exception:
                    # A move that fails costs a cached page, not the engine; the scheduler forgets what it was.
                    log.exception("a %s of %d pages failed", move.kind, len(move.keys))
                    result = MoveDone(move.move_id, False)
                self._done(result)
                if (load := self._loads.pop(move.move_id, None)) is not None:
                    load.done.set()

    def _run(self, move: Move, event: torch.cuda.Event | None) -> MoveDone:
        match move.kind:
            case "write_back":
                if self._stream is None:
                    self._write_back(move)
                else:
                    with torch.cuda.stream(self._stream):
                        if event is not None:
                            self._stream.wait_event(event)
                        self._write_back(move)
                        self._stream.synchronize()
                return MoveDone(move.move_id, True)
            case "load_back":
                load = self._loads[move.move_id]
                if self._stream is None:
                    self._load_on_host(move, load)
                else:
                    with torch.cuda.stream(self._stream):
                        if event is not None:
                            self._stream.wait_event(event)
                        self._load_on_gpu(move, load)
                return MoveDone(move.move_id, True)
            case "prefetch":
                return self._prefetch(move)
            case "store":
                assert self._disk is not None
                for key, page in zip(move.keys, move.sources, strict=True):
                    if not self._disk.write(key, [self._host.block(int(page))]):
                        # The scheduler counts nothing of a move that failed: none of its blocks may keep its room.
                        self._disk.discard(move.keys)
                        return MoveDone(move.move_id, False)
                return MoveDone(move.move_id, True)
            case "discard":
                assert self._disk is not None
                self._disk.discard(move.keys)
                return MoveDone(move.move_id, True)
        raise ValueError(f"unknown kind of move {move.kind}")

    def _prefetch(self, move: Move) -> MoveDone:
        """Disk to host, up to the first block that is missing or rotten."""
        assert self._disk is not None
        good = 0
        for key, page in zip(move.keys, move.targets, strict=True):
            if not self._disk.read(key, self._host.block(int(page))):
                break
            good += 1
        return MoveDone(move.move_id, good == len(move.keys), good)

    def _write_back(self, move: Move) -> None:
        chunk = self._chunk(len(self._cache.k))
        for first in range(0, len(move.sources), chunk):
            sources = self._index(move.sources[first : first + chunk])
            targets = torch.from_numpy(move.targets[first : first + chunk].astype(np.int64))
            gathered = torch.stack(
                [
                    torch.stack((k.index_select(0, sources), v.index_select(0, sources)), dim=1)
                    for k, v in zip(self._cache.k, self._cache.v, strict=True)
                ],
                dim=1,
            )
            for place, page in enumerate(targets.tolist()):
                self._host.pages[page].copy_(gathered[place], non_blocking=True)

    def _load_on_host(self, move: Move, load: LayerLoad) -> None:
        """The forward pass waits in another thread, so that a group counts as soon as it is copied."""
        try:
            for group, (first, end) in enumerate(load.groups):
                self._load_layers(move, first, end)
                load.mark(group)
                if group == 0 and len(load.groups) > 1:
                    self._done(LayersLanded(move.move_id))
        finally:
            # Whoever waits after a failure computes what the scheduler will drop.
            for group in range(len(load.groups)):
                load.mark(group)

    def _load_on_gpu(self, move: Move, load: LayerLoad) -> None:
        """Only what has been recorded can be waited for: all groups are queued before any step hears of the first."""
        for group, (first, end) in enumerate(load.groups):
            self._load_layers(move, first, end)
            load.mark(group)
        if len(load.groups) > 1:
            load.sleep(0)
            self._done(LayersLanded(move.move_id))
        load.sleep(len(load.groups) - 1)

    def _load_layers(self, move: Move, first_layer: int, end_layer: int) -> None:
        """Layers [first_layer, end_layer) of every page of the move."""
        chunk = self._chunk(end_layer - first_layer)
        for at in range(0, len(move.sources), chunk):
            pages = move.sources[at : at + chunk].tolist()
            targets = self._index(move.targets[at : at + chunk])
            shape = (len(pages), end_layer - first_layer, *self._host.pages.shape[2:])
            gathered = torch.empty(shape, dtype=self._host.pages.dtype, device=self._device)
            for place, page in enumerate(pages):
                gathered[place].copy_(self._host.pages[page, first_layer:end_layer], non_blocking=True)
            for layer in range(first_layer, end_layer):
                self._cache.k[layer].index_copy_(0, targets, gathered[:, layer - first_layer, 0])
                self._cache.v[layer].index_copy_(0, targets, gathered[:, layer - first_layer, 1])

    def _chunk(self, layers: int) -> int:
        """Pages to gather at a time, of so many layers each."""
        size = self._host.page_bytes(self._cache) * layers // len(self._cache.k)
        return max(1, _STAGE_BYTES // size)

    def _index(self, pages: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(pages.astype(np.int64)).to(self._device)
