"""The operator's view: engine snapshots merged with what the front knows, shared by everyone who watches.

One task asks the engines, at the shortest interval that any watcher wants; an event is told once to each watcher.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec

from tsd.api.engines import EngineClient
from tsd.api.errors import ApiError
from tsd.api.front import Front
from tsd.api.fronts import whole
from tsd.api.gpus import GpuReader

VERSION = 1
MIN_INTERVAL_S = 0.5
MAX_INTERVAL_S = 60.0
EVENTS_KEPT = 1000


class Watcher:
    """One stream's queue: the newest snapshot, with the events since its last one."""

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self.due = 0.0
        self.events: dict[int, list[Any]] = {}
        self.newest: asyncio.Queue[bytes] = asyncio.Queue(maxsize=2)


class Snapshots:
    def __init__(self, front: Front) -> None:
        self._front = front
        self._gpus = GpuReader()
        self._watchers: set[Watcher] = set()
        self._task: asyncio.Task[None] | None = None

    def watch(self, interval_s: float) -> Watcher:
        watcher = Watcher(interval_s)
        self._watchers.add(watcher)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._poll())
        return watcher

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.discard(watcher)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def take(self) -> dict[str, Any]:
        engines = await asyncio.gather(*(self._engine(engine) for engine in self._front.fleet.engines))
        gpus = await asyncio.get_running_loop().run_in_executor(None, self._gpus.read)
        server = await self._server()
        return {"version": VERSION, "time": time.time(), **server, "gpus": gpus, "engines": engines}

    async def _poll(self) -> None:
        loop = asyncio.get_running_loop()
        while self._watchers:
            started = loop.time()
            snapshot = await self.take()
            for watcher in list(self._watchers):
                self._offer(watcher, snapshot, started)
            pause = min((watcher.interval_s for watcher in self._watchers), default=0.0)
            await asyncio.sleep(max(0.05, pause - (loop.time() - started)))

    def _offer(self, watcher: Watcher, snapshot: dict[str, Any], now: float) -> None:
        for number, engine in enumerate(snapshot["engines"]):
            kept = watcher.events.setdefault(number, [])
            kept.extend(engine.get("events") or [])
            del kept[:-EVENTS_KEPT]
        if now + 0.01 < watcher.due or watcher.newest.full():
            return
        watcher.due = now + watcher.interval_s
        engines = [
            {**engine, "events": watcher.events.pop(number, [])} for number, engine in enumerate(snapshot["engines"])
        ]
        watcher.newest.put_nowait(msgspec.json.encode({**snapshot, "engines": engines}))

    async def _server(self) -> dict[str, Any]:
        front = self._front
        options, figures = front.options, await whole.figures(front)
        by = figures.finished_by
        scheme = "https" if options.tls_certificate else "http"
        return {
            "uptime_s": round(time.time() - front.started_at, 3),
            "server": {
                "name": "tsd",
                "version": VERSION_TEXT,
                "model": options.name,
                "state": "failed" if front.fault() else front.state,
                "url": f"{scheme}://{options.host}:{options.port}",
                "slo": options.slo,
                "latency": await whole.latency(front),
                "counters": {
                    "requests": figures.requests,
                    "finished": sum(by.get(reason, 0) for reason in ("stop", "length", "tool_calls")),
                    "aborted": by.get("abort", 0),
                    "refused": by.get("refused", 0),
                    "failed": by.get("error", 0),
                    "streams_open": figures.streams_open,
                },
            },
        }

    async def _engine(self, engine: EngineClient) -> dict[str, Any]:
        base: dict[str, Any] = {"engine": engine.engine, "state": engine.state}
        if engine.ready is None:
            base["phases"] = {phase.phase: phase.elapsed_s for phase in engine.phases}
            return base
        if engine.state == "dead":
            return base
        try:
            payload = msgspec.json.decode(await engine.command("snapshot", timeout_s=2.0))
        except (ApiError, msgspec.DecodeError) as error:
            return {**base, "state": "stuck", "error": str(error)}
        return {**base, **payload} if isinstance(payload, dict) else base


VERSION_TEXT = "0.1.0"
