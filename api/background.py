"""Responses that run on without a client: their events, kept for whoever comes to follow them. Knows no engine."""

from __future__ import annotations

import asyncio

from aiohttp import web

from tsd.api.errors import InvalidRequest
from tsd.api.streaming import PING

LOG_BYTES = 4 * 1024 * 1024
"""Of one response's events; past that they can no longer be followed, only the response be read."""


class EventLog:
    """Takes what a stream takes, one event a call: event i has sequence number i."""

    def __init__(self) -> None:
        self._events: list[bytes] = []
        self._more = asyncio.Event()
        self.size = 0
        self.closed = False
        self.lost = False

    def send(self, data: bytes) -> None:
        if self.lost:
            return
        self._events.append(data)
        self.size += len(data)
        if self.size > LOG_BYTES:
            self.lost, self.size, self._events = True, 0, []
        self._wake()

    def close(self) -> None:
        """Nothing more will come."""
        self.closed = True
        self._wake()

    def since(self, number: int) -> list[bytes]:
        return self._events[number:]

    async def wait(self, seconds: float) -> bool:
        """False when nothing came in that time."""
        try:
            async with asyncio.timeout(seconds):
                await self._more.wait()
        except TimeoutError:
            return False
        return True

    def _wake(self) -> None:
        """Every follower that waits now, and none that comes later."""
        more, self._more = self._more, asyncio.Event()
        more.set()


async def follow(request: web.Request, log: EventLog, number: int, ping_s: float) -> web.StreamResponse:
    """Streams the events from `number` on, to the end. A disconnect ends the following only."""
    if log.lost:
        raise InvalidRequest("this response's events are no longer kept", param="stream", code="events_not_kept")
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    while not log.lost:
        events = log.since(number)
        if events:
            number += len(events)
            await response.write(b"".join(events))
        elif log.closed:
            break
        elif not await log.wait(ping_s):
            await response.write(PING)
    await response.write_eof()
    return response
