"""Server-sent events to one client, written without a task per chunk. Knows no dialect.

Chunks pile up in the stream during a step and leave with one `transport.write` when the step has been walked. A
client that reads slowly makes its own stream wait; one that leaves too much unread is cut off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import HttpVersion11, web

HIGH_WATER = 256 * 1024
CLOSE_S = 60.0
PING = b": ping\n\n"


class Outbox:
    """The streams that have something to write."""

    __slots__ = ("_asked", "dirty")

    def __init__(self) -> None:
        self.dirty: list[EventStream] = []
        self._asked = False

    def flush_soon(self) -> None:
        """Once this turn of the loop: when the front is behind and reads several steps at a time, each stream still
        costs one write."""
        if not self._asked:
            self._asked = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        self._asked = False
        dirty, self.dirty = self.dirty, []
        for stream in dirty:
            stream.flush()


class EventStream:
    """`send` may be called before `open`: headers go out with the first bytes."""

    __slots__ = (
        "_buffer",
        "_chunked",
        "_is_dirty",
        "_limit",
        "_on_overflow",
        "_open",
        "_outbox",
        "_response",
        "_size",
        "_transport",
        "sent",
    )

    def __init__(self, outbox: Outbox, limit: int, on_overflow: Callable[[], None]) -> None:
        self._outbox = outbox
        self._limit = limit
        self._on_overflow = on_overflow
        self._buffer: list[bytes] = []
        self._size = 0
        self._is_dirty = False
        self._open = False
        self._chunked = True
        self._response: web.StreamResponse | None = None
        self._transport: asyncio.Transport | None = None
        self.sent = 0
        """Writes so far."""

    @property
    def is_open(self) -> bool:
        return self._open

    def send(self, data: bytes) -> None:
        self._buffer.append(data)
        self._size += len(data)
        if not self._is_dirty:
            self._is_dirty = True
            self._outbox.dirty.append(self)

    def put_first(self, data: bytes) -> None:
        """Before anything that was sent; only until `open`."""
        assert not self._open
        self._buffer.insert(0, data)
        self._size += len(data)

    async def open(self, request: web.Request, headers: dict[str, str]) -> None:
        """Sends the headers and what there is."""
        response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream",
                "Cache-Control": "no-cache",
                "X-Accel-Buffering": "no",
                **headers,
            }
        )
        await response.prepare(request)
        self._response = response
        self._transport = request.transport
        self._chunked = request.version >= HttpVersion11
        first = b"".join(self._buffer)
        self._buffer.clear()
        self._size = 0
        await response.write(first or PING)
        self._open = True
        self.sent += 1

    def flush(self) -> None:
        """One write of everything there is, unless the client is behind."""
        self._is_dirty = False
        if not self._open or not self._buffer:
            return
        transport = self._transport
        if transport is None or transport.is_closing():
            self._buffer.clear()
            return
        if transport.get_write_buffer_size() > HIGH_WATER:
            if self._size > self._limit:
                self._buffer.clear()
                self._size = 0
                self._on_overflow()
                transport.abort()
            return
        buffer = self._buffer
        data = buffer[0] if len(buffer) == 1 else b"".join(buffer)
        buffer.clear()
        self._size = 0
        self.sent += 1
        transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def ping(self) -> None:
        self.send(PING)
        self.flush()

    async def close(self) -> web.StreamResponse:
        """Writes what is left, at the client's pace, and ends the response. One who stops reading is dropped."""
        response = self._response
        assert response is not None
        data = b"".join(self._buffer)
        self._buffer.clear()
        try:
            async with asyncio.timeout(CLOSE_S):
                if data:
                    await response.write(data)
                await response.write_eof()
        except TimeoutError:
            if self._transport is not None:
                self._transport.abort()
        return response
