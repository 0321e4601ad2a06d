"""Shared by the console's tests: a source with a fixed past and clock, and a server that follows a script."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from tsd.console.demo import URL, DemoFleet
from tsd.console.demo_source import DemoOperator, lived
from tsd.console.link import Link, LinkState
from tsd.console.snapshot import Snapshot
from tsd.console.source import Sink
from tsd.console.tui import ConsoleApp

SECONDS = 146


@functools.lru_cache(maxsize=8)
def past(seconds: int, options: tuple[tuple[str, Any], ...]) -> tuple[DemoFleet, Heard]:
    """A fleet after `seconds`, and what it said meanwhile. Copy the fleet before it lives on."""
    fleet, heard = DemoFleet(**dict(options)), Heard()
    lived(fleet, seconds, heard)
    return fleet, heard


class FixedSource:
    """Gives a fleet's past at once, then says nothing until it is told to `step`."""

    def __init__(self, seconds: int, options: dict[str, Any]) -> None:
        fleet, self.heard = past(seconds, tuple(options.items()))
        self.fleet = copy.deepcopy(fleet)
        self.seconds = seconds
        self.sink: Sink | None = None

    async def run(self, sink: Sink) -> None:
        self.sink = sink
        sink.link_changed(self.heard.links[-1])
        for snapshot in self.heard.snapshots:
            sink.snapshot_arrived(snapshot, b"")
        await asyncio.Event().wait()

    def step(self, seconds: int = 1) -> None:
        assert self.sink is not None
        lived(self.fleet, seconds, self.sink)

    def link(self, state: LinkState, detail: str = "", retry_s: float | None = None) -> None:
        assert self.sink is not None
        self.sink.link_changed(Link(state, URL, detail, self.fleet.now, 1, retry_s))


class Console:
    """An app on a fixed fleet, with a handle on everything around it."""

    def __init__(self, seconds: int = SECONDS, theme: str = "night", read_only: bool = False, **fleet: Any) -> None:
        self.source = FixedSource(seconds, fleet)
        self.fleet = self.source.fleet
        self.operator = DemoOperator(self.fleet, read_only)
        self.app = ConsoleApp(self.source, self.operator, url=URL, theme=theme, clock=lambda: self.fleet.now)

    @contextlib.asynccontextmanager
    async def running(self, size: tuple[int, int] = (120, 40)) -> AsyncIterator[Any]:
        async with self.app.run_test(size=size) as pilot:
            await until(pilot, lambda: self.app.frame.snapshot is not None or self.seconds_none)
            yield pilot

    @property
    def seconds_none(self) -> bool:
        return self.source.seconds == 0


async def until(pilot: Any, holds: Callable[[], object], tries: int = 400) -> None:
    """Waits until `holds`; fails when it never does."""
    for _ in range(tries):
        await pilot.pause()
        if holds():
            await pilot.pause()
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not happen")


class Heard:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.links: list[Link] = []
        self.snapshots: list[Snapshot] = []
        self._changed = asyncio.Event()

    def link_changed(self, link: Link) -> None:
        self.links.append(link)
        self._changed.set()

    def snapshot_arrived(self, snapshot: Snapshot, raw: bytes) -> None:
        self.snapshots.append(snapshot)
        self._changed.set()

    @property
    def states(self) -> list[LinkState]:
        return [link.state for link in self.links]

    async def until(self, holds: Callable[[Heard], object], seconds: float = 10.0) -> None:
        async with asyncio.timeout(seconds):
            while not holds(self):
                self._changed.clear()
                await self._changed.wait()


Script = Callable[[int, str, asyncio.StreamWriter], Awaitable[None]]

HEAD = b"HTTP/1.1 200 OK\r\nServer: tsd\r\nContent-Type: text/event-stream\r\n\r\n"


def event(text: str | bytes) -> bytes:
    return b"data: " + (text.encode() if isinstance(text, str) else text) + b"\n\n"


def small(time: float = 1.0, **server: Any) -> str:
    """A small snapshot as text."""
    import json

    return json.dumps({"version": 1, "time": time, "server": server, "engines": [{"engine": 0}]})


@contextlib.asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[str]:
    """A server that hands connection number, head and writer to `script`, then closes; yields its URL."""
    number = 0
    tasks: set[asyncio.Task[None]] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal number
        number += 1
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            await script(number, head, writer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()
