"""The made-up fleet where the console expects a server: a source of snapshots and an operator's actions.

Knows nothing about screens.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

from tsd.console.actions import DRAIN, FLUSH, PAUSE, RESUME, Action
from tsd.console.demo import URL, DemoFleet
from tsd.console.demo_kernels import KERNELS
from tsd.console.errors import ActionFailed, ReadOnly
from tsd.console.link import Link, LinkState
from tsd.console.snapshot import CACHED, FREE, decode_snapshot
from tsd.console.source import Sink


class DemoSource:
    """Ticks a fleet once an interval. `warm_s` seconds of its past are lived before the first snapshot."""

    def __init__(self, fleet: DemoFleet, interval_s: float = 1.0, warm_s: int = 0) -> None:
        self.fleet = fleet
        self.interval_s = interval_s
        self.warm_s = warm_s

    async def run(self, sink: Sink) -> None:
        sink.link_changed(Link(LinkState.LIVE, URL, "demo", time.time()))
        for _ in range(self.warm_s):
            self.step(sink, 1.0)
        while True:
            self.step(sink, self.interval_s)
            await asyncio.sleep(self.interval_s)

    def step(self, sink: Sink, dt: float) -> None:
        self.fleet.tick(dt)
        raw = self.fleet.encode()
        sink.snapshot_arrived(decode_snapshot(raw), raw)


class DemoOperator:
    """Acts on a fleet as `actions.Operator` acts on a server."""

    def __init__(self, fleet: DemoFleet, read_only: bool = False) -> None:
        self.fleet = fleet
        self.read_only = read_only
        self.done: list[tuple[str, dict[str, str]]] = []

    async def act(self, action: Action, body: dict[str, str] | None = None) -> str:
        if self.read_only:
            raise ReadOnly("this console is read-only: start it without --read-only to act")
        self.done.append((action.name, body or {}))
        fleet = self.fleet
        if action is PAUSE or action is RESUME or action is DRAIN:
            fleet.state = {"pause": "paused", "resume": "ready", "drain": "draining"}[action.name]
            for engine in fleet.engines:
                engine.state = fleet.state
                engine.event(fleet.now, action.name, None, "operator", f"the server is {fleet.state}")
        elif action is FLUSH:
            for engine in fleet.engines:
                for index in engine.lru:
                    if engine.map[index] == CACHED:
                        engine.map[index] = FREE
                engine.lru.clear()
                engine.event(fleet.now, "flush", None, "operator", "cached pages dropped")
        elif body and "request_id" in body and not fleet.abort(body["request_id"], "operator"):
            raise ActionFailed(f"no request {body['request_id']}: it has ended")
        return "done"

    async def request_detail(self, request_id: str) -> dict[str, Any]:
        for engine in self.fleet.engines:
            request = engine.find(request_id)
            if request is not None:
                return {
                    "id": request_id,
                    "state": request.state,
                    "client": request.client,
                    "timeline": request.timeline,
                }
        raise ActionFailed(f"no request {request_id}: it has ended")

    async def page_detail(self, engine: int, page_bin: int) -> dict[str, Any]:
        found = self.fleet.engines[engine]
        if page_bin >= len(found.map):
            raise ActionFailed(f"engine {engine} has no bin {page_bin}")
        owner = found.owner.get(page_bin)
        key = random.Random(f"{engine}/{page_bin}")
        first = page_bin * found.bin_pages
        state = ("free", "cached", "active", "shared", "fenced", "in flight")[found.map[page_bin]]
        pages = [
            {
                "page": first + offset,
                "state": state,
                "owner": owner if state in ("active", "shared") else None,
                "key": f"{key.getrandbits(128):032x}" if state in ("cached", "shared") else None,
                "refs": 1 if state == "active" else 9 if state == "shared" else 0,
            }
            for offset in range(min(found.bin_pages, 64))
        ]
        return {"engine": engine, "bin": page_bin, "pages": pages}

    async def kernels(self) -> list[Any]:
        return [{"engine": e.number, "kernels": KERNELS} for e in self.fleet.engines]


def lived(fleet: DemoFleet, seconds: int, sink: Sink) -> None:
    """Lives `seconds` of a fleet's life at once, into a sink: for screenshots and tests."""
    source = DemoSource(fleet)
    sink.link_changed(Link(LinkState.LIVE, URL, "demo", fleet.now))
    for _ in range(seconds):
        source.step(sink, 1.0)
