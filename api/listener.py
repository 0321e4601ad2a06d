"""Accepts connections for the HTTP server, and drops those that have sent no whole request head in time."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any

BACKLOG = 4096


class Listener:
    """`make` gives a protocol for each connection; `heard` is told of each whose request came."""

    def __init__(self, make: Callable[[], Any], seconds: float) -> None:
        self._make = make
        self._seconds = seconds
        self._silent: set[Any] = set()
        self._server: asyncio.Server | None = None

    async def start(self, listen_socket: socket.socket, context: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, sock=listen_socket, ssl=context, backlog=BACKLOG)

    def heard(self, protocol: Any) -> None:
        self._silent.discard(protocol)

    def close(self) -> None:
        """Accepts no more; connections that are open stay."""
        if self._server is not None:
            self._server.close()

    def _accept(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._make()
        self._silent.add(protocol)
        asyncio.get_running_loop().call_later(self._seconds, self._drop, protocol)
        return protocol

    def _drop(self, protocol: Any) -> None:
        if protocol in self._silent:
            self._silent.discard(protocol)
            if protocol.transport is not None:
                protocol.transport.abort()
