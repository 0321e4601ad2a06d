"""What the console remembers: a window of moments derived from snapshots, recent events, kernels, and the link.

Owns the arithmetic from cumulative counters to rates, and the immutable `Frame` that every screen draws from. Knows
nothing about sockets or widgets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from tsd.console.errors import ForeignServer
from tsd.console.explain import Explanation, explain
from tsd.console.link import Link
from tsd.console.mailbox import Delivery, EngineEvent
from tsd.console.moment import EngineMoment, Moment
from tsd.console.snapshot import Engine, KernelChoice, Snapshot, drop_nulls

NOTHING = Explanation()
MOMENTS = 600
EVENTS = 2000


@dataclass(frozen=True, eq=False)
class Frame:
    """Everything a screen draws, at one moment. `now` is Unix seconds on the console's clock; `chosen` is the place
    of the selected engine in the snapshot."""

    link: Link
    now: float
    snapshot: Snapshot | None = None
    moments: Sequence[Moment] = ()
    events: Sequence[EngineEvent] = ()
    kernels: dict[int, tuple[KernelChoice, ...]] = field(default_factory=dict)
    explanation: Explanation = NOTHING
    chosen: int = 0
    frozen: bool = False
    read_only: bool = False
    recording: str = ""
    replay: bool = False

    @property
    def moment(self) -> Moment | None:
        return self.moments[-1] if self.moments else None

    @property
    def engine(self) -> Engine | None:
        """The selected engine."""
        engines = self.snapshot.engines if self.snapshot is not None else ()
        return engines[min(self.chosen, len(engines) - 1)] if engines else None

    def engine_moment(self, engine: int) -> EngineMoment:
        """The rates of one engine; empty ones when it is new or gone."""
        moment = self.moment
        return EngineMoment() if moment is None else moment.engines.get(engine, EngineMoment())


class History:
    """Takes deliveries and makes frames."""

    def __init__(self, link: Link, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.frame = Frame(link, clock())
        self.moments: deque[Moment] = deque(maxlen=MOMENTS)
        self.events: deque[EngineEvent] = deque(maxlen=EVENTS)
        self.restarts = 0

    def absorb(self, delivery: Delivery) -> Frame:
        """The frame after a delivery."""
        link = delivery.link or self.frame.link
        kernels = self.frame.kernels | delivery.kernels if delivery.kernels else self.frame.kernels
        self.events.extend(delivery.events)
        snapshot = self.frame.snapshot
        explanation = self.frame.explanation
        if delivery.snapshot is not None:
            if delivery.restarted:
                self.restarts += 1
                self.moments.clear()
                kernels = dict(delivery.kernels)
            self.moments.extend(delivery.moments)
            snapshot = delivery.snapshot
            explanation = explain(tuple(self.moments), snapshot.server.slo)
        self.frame = replace(
            self.frame,
            link=link,
            now=self.clock(),
            snapshot=snapshot,
            moments=tuple(self.moments),
            events=tuple(self.events),
            kernels=kernels,
            explanation=explanation,
        )
        return self.frame

    def learn_kernels(self, found: Sequence[Any]) -> None:
        """Takes the answer of `/admin/kernels`."""
        self.frame = replace(self.frame, kernels=self.frame.kernels | kernel_tables(found))


def kernel_tables(found: Sequence[Any]) -> dict[int, tuple[KernelChoice, ...]]:
    """The answer of `/admin/kernels` by engine: its selections, or {"engine", "kernels"}, for each; or those of one."""
    tables: dict[int, tuple[KernelChoice, ...]] = {}
    try:
        if found and all(isinstance(item, dict) and "kernels" in item for item in found):
            for place, item in enumerate(found):
                number = item.get("engine", place)
                tables[number] = msgspec.convert(drop_nulls(item["kernels"]), tuple[KernelChoice, ...], strict=False)
        elif found and all(isinstance(item, list) for item in found):
            for number, item in enumerate(found):
                tables[number] = msgspec.convert(drop_nulls(item), tuple[KernelChoice, ...], strict=False)
        elif found:
            tables[0] = msgspec.convert(drop_nulls(list(found)), tuple[KernelChoice, ...], strict=False)
    except msgspec.ValidationError as error:
        raise ForeignServer(f"/admin/kernels answers something else than selections ({error})") from None
    return tables
