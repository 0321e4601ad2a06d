"""A front over a fake engine in a thread of its own, for clients that are not asynchronous."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import uvloop
from support.front_server import serving


@contextlib.contextmanager
def served(**options: Any) -> Iterator[str]:
    """Its URL, until the block ends."""
    started = threading.Event()
    found: dict[str, Any] = {}

    async def main() -> None:
        stop = found["stop"] = asyncio.Event()
        found["loop"] = asyncio.get_running_loop()
        async with serving(**options) as server:
            found["url"] = server.url
            started.set()
            await stop.wait()

    def run() -> None:
        try:
            uvloop.run(main())
        finally:
            started.set()

    thread = threading.Thread(target=run, name="served")
    thread.start()
    try:
        assert started.wait(30) and "url" in found, "the front did not start"
        yield found["url"]
    finally:
        if "url" in found:
            found["loop"].call_soon_threadsafe(found["stop"].set)
        thread.join(30)
