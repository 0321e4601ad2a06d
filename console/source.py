"""Where snapshots come from. A source tells a sink about each snapshot and each change of the link.

Owns connecting, staleness and backing off. Knows nothing about screens: the sink is two calls, and the only thing
that a source touches.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Protocol

from tsd.console import http
from tsd.console.errors import ConsoleError, ForeignServer, GarbageStream, KeyRefused, ServerDown
from tsd.console.link import Link, LinkState, state_of
from tsd.console.snapshot import Snapshot, decode_snapshot
from tsd.console.sse import EventParser

BACKOFF_S = (0.5, 1.0, 2.0, 4.0, 8.0)
STREAM_PATH = "/admin/stream"
GARBAGE_IN_A_ROW = 3


class Sink(Protocol):
    """Takes what a source has to say. Both calls return at once."""

    def link_changed(self, link: Link) -> None: ...

    def snapshot_arrived(self, snapshot: Snapshot, raw: bytes) -> None: ...


class Source(Protocol):
    """Runs until cancelled, or until it has nothing more to say."""

    async def run(self, sink: Sink) -> None: ...


class ServerSource:
    """Follows `GET /admin/stream` of one server for ever, reconnecting with a growing pause.

    After `stale_s` seconds without a snapshot the link is stale; after `drop_s` the connection is given up.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        interval_s: float = 1.0,
        *,
        stale_s: float | None = None,
        drop_s: float = 30.0,
        connect_s: float = 5.0,
        backoff_s: tuple[float, ...] = BACKOFF_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.url = url
        self.address = http.parse_url(url)
        self.interval_s = interval_s
        self.stale_s = max(3.0, 3 * interval_s) if stale_s is None else stale_s
        self.drop_s = max(drop_s, self.stale_s)
        self.connect_s = connect_s
        self.backoff_s = backoff_s
        self.clock = clock
        self.headers = auth_headers(key) | {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        self._attempt = 0

    async def run(self, sink: Sink) -> None:
        self._tell(sink, LinkState.CONNECTING)
        while True:
            pause = self.backoff_s[0]
            try:
                await self._follow(sink)
            except ConsoleError as error:
                pause = self.backoff_s[min(self._attempt, len(self.backoff_s) - 1)]
                self._attempt += 1
                self._tell(sink, state_of(error), str(error), pause)
            await asyncio.sleep(pause)

    def _tell(self, sink: Sink, state: LinkState, detail: str = "", retry_s: float | None = None) -> None:
        sink.link_changed(Link(state, self.url, detail, self.clock(), self._attempt, retry_s))

    async def _follow(self, sink: Sink) -> None:
        """One connection, from the request to the error that ends it."""
        path = f"{STREAM_PATH}?interval={self.interval_s:g}"
        response = await http.request("GET", self.address, path, self.headers, timeout=self.connect_s)
        try:
            await check_stream(response)
            await self._read(sink, response)
        finally:
            response.close()

    async def _read(self, sink: Sink, response: http.Response) -> None:
        parser = EventParser()
        pieces = response.pieces()
        state = LinkState.CONNECTING
        bad = 0
        last = time.monotonic()
        # `pending` outlives a timeout: cancelling a read half way would lose bytes.
        pending: asyncio.Task[bytes] | None = None
        try:
            while True:
                pending = pending or asyncio.create_task(anext_or_end(pieces), name="console-read")
                silent = time.monotonic() - last
                limit = self.drop_s if state is LinkState.STALE else self.stale_s
                done, _ = await asyncio.wait({pending}, timeout=max(0.0, limit - silent))
                if not done:
                    if state is LinkState.STALE:
                        raise ServerDown(f"no snapshot for {self.drop_s:g} s; the connection was given up")
                    state = LinkState.STALE
                    self._tell(sink, state, f"no snapshot for {self.stale_s:g} s")
                    continue
                piece, pending = pending.result(), None
                for payload in parser.feed(piece):
                    try:
                        snapshot = decode_snapshot(payload)
                    except GarbageStream as error:
                        bad += 1
                        if bad >= GARBAGE_IN_A_ROW:
                            raise
                        state = LinkState.GARBAGE
                        self._tell(sink, state, str(error))
                        continue
                    bad, self._attempt, last = 0, 0, time.monotonic()
                    if state is not LinkState.LIVE:
                        state = LinkState.LIVE
                        self._tell(sink, state)
                    sink.snapshot_arrived(snapshot, payload)
                await asyncio.sleep(0)
        finally:
            if pending is not None:
                pending.cancel()
                with contextlib.suppress(asyncio.CancelledError, ConsoleError):
                    await pending
            await pieces.aclose()


async def anext_or_end(pieces: http.Pieces) -> bytes:
    """The next piece of a body; its end raises ServerDown, because a stream of snapshots has none."""
    try:
        return await anext(pieces)
    except StopAsyncIteration:
        raise ServerDown("the server closed the stream") from None


def auth_headers(key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


async def check_stream(response: http.Response) -> None:
    """Raises the error that an answer's head means, unless it opens a stream of events."""
    kind = response.headers.get("content-type", "").partition(";")[0].strip()
    ours = "tsd" in response.headers.get("server", "").lower()
    status = response.status
    if status in (401, 403):
        raise KeyRefused(f"the server refuses the admin key (HTTP {status})")
    if status in (404, 405, 501):
        what = "is too old for this console" if ours else "is no tsd server, or one too old for this console"
        raise ForeignServer(f"what answers {what}: it has no {STREAM_PATH} (HTTP {status})")
    if 300 <= status < 400:
        raise ForeignServer(f"the server sends elsewhere (HTTP {status} to {response.headers.get('location', '?')})")
    if status >= 500:
        raise ServerDown(f"the server answers with an error (HTTP {status})")
    if status != 200:
        raise ForeignServer(f"the server does not open the stream (HTTP {status})")
    if kind != "text/event-stream":
        raise ForeignServer(f"what answers is no tsd server: it sends {kind or 'something'} instead of events")
