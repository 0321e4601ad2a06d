"""Between the source and the screens: keeps what arrived since the last look and rings once.

A flood coalesces here: of many snapshots the newest is kept, and the events of all of them, up to a bound. Owns no
thread and no socket; both ends run on one event loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from tsd.console.link import Link
from tsd.console.moment import Moment, derive, restarted
from tsd.console.snapshot import Event, KernelChoice, Snapshot

MAX_EVENTS = 2000
MAX_MOMENTS = 600


class EngineEvent(NamedTuple):
    engine: int
    event: Event


class Delivery(NamedTuple):
    """What one look found. `snapshot` is None when none came; `merged` counts those that it replaced.

    `moments` has one for each of them, so that no rate is lost; after a restart only those of the new life.
    """

    snapshot: Snapshot | None
    link: Link | None
    events: list[EngineEvent]
    kernels: dict[int, tuple[KernelChoice, ...]]
    merged: int
    moments: list[Moment]
    restarted: bool


class Mailbox:
    """A `Sink` that calls `ring` when it goes from empty to full, and `tap` with each raw snapshot (for recording)."""

    def __init__(self, ring: Callable[[], object], tap: Callable[[bytes], None] | None = None) -> None:
        self._ring = ring
        self._tap = tap
        self._snapshot: Snapshot | None = None
        self._link: Link | None = None
        self._events: deque[EngineEvent] = deque(maxlen=MAX_EVENTS)
        self._kernels: dict[int, tuple[KernelChoice, ...]] = {}
        self._merged = 0
        self._last: Snapshot | None = None
        self._moments: deque[Moment] = deque(maxlen=MAX_MOMENTS)
        self._restarted = False

    @property
    def empty(self) -> bool:
        return self._snapshot is None and self._link is None

    def link_changed(self, link: Link) -> None:
        ring = self.empty
        self._link = link
        if ring:
            self._ring()

    def snapshot_arrived(self, snapshot: Snapshot, raw: bytes) -> None:
        ring = self.empty
        self._merged += self._snapshot is not None
        if restarted(self._last, snapshot):
            self._restarted, self._last, self._kernels = True, None, {}
            self._moments.clear()
            event = Event(snapshot.time, "restart", None, "its counters began anew", "the server restarted")
            self._events.append(EngineEvent(-1, event))
        self._moments.append(derive(self._last, snapshot))
        self._snapshot = self._last = snapshot
        for engine in snapshot.engines:
            self._events.extend(EngineEvent(engine.engine, event) for event in engine.events)
            if engine.kernels:
                self._kernels[engine.engine] = engine.kernels
        if self._tap is not None:
            self._tap(raw)
        if ring:
            self._ring()

    def take(self) -> Delivery:
        """Everything since the last call; the box is empty afterwards."""
        found = Delivery(
            self._snapshot,
            self._link,
            list(self._events),
            self._kernels,
            self._merged,
            list(self._moments),
            self._restarted,
        )
        self._restarted = False
        self._moments.clear()
        self._snapshot, self._link, self._kernels, self._merged = None, None, {}, 0
        self._events.clear()
        return found
