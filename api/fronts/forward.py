"""Sends a request on to another front and its answer back, streams included. Knows no route."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiohttp
from aiohttp import web

from tsd.api.errors import Unavailable

CONNECT_S = 5.0
_ONE_HOP = frozenset(("connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "host", "date"))
_TO_OWNER = _ONE_HOP | {"content-length", "content-encoding", "accept-encoding", "expect"}
"""The body is sent as it was read: whole and not compressed."""


class Forwarder:
    """Bodies are the caller's to read, within its limits. `path_of` gives the Unix socket of a front."""

    def __init__(self, path_of: Callable[[int], str]) -> None:
        self._path_of = path_of
        self._sessions: dict[int, aiohttp.ClientSession] = {}

    async def send(self, request: web.Request, to: int, body: bytes) -> web.StreamResponse:
        """Raises Unavailable where that front does not answer. A client that leaves ends the request there too."""
        headers = [(name, value) for name, value in request.headers.items() if name.lower() not in _TO_OWNER]
        try:
            async with self._session(to).request(
                request.method, request.rel_url, headers=headers, data=body or None, allow_redirects=False
            ) as answer:
                return await _relay(request, answer)
        except aiohttp.ClientError as error:
            if request.transport is None or request.transport.is_closing():
                raise ConnectionResetError("the client left") from error
            raise Unavailable("the front that owns this does not answer", retry_after=1) from error

    async def close(self) -> None:
        sessions, self._sessions = list(self._sessions.values()), {}
        await asyncio.gather(*(session.close() for session in sessions))

    def _session(self, to: int) -> aiohttp.ClientSession:
        session = self._sessions.get(to)
        if session is None:
            session = self._sessions[to] = aiohttp.ClientSession(
                "http://front",
                connector=aiohttp.UnixConnector(self._path_of(to), limit=0),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
                auto_decompress=False,
            )
        return session


async def _relay(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    headers = [(name, value) for name, value in answer.headers.items() if name.lower() not in _ONE_HOP]
    if "Content-Length" in answer.headers:
        return web.Response(status=answer.status, headers=headers, body=await answer.read())
    response = web.StreamResponse(status=answer.status, headers=headers)
    await response.prepare(request)
    try:
        async for data in answer.content.iter_any():
            await response.write(data)
    except aiohttp.ClientError as error:
        # Headers are out: the client must see a broken stream, not a complete one.
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("the owning front left") from error
    await response.write_eof()
    return response
