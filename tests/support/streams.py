"""A streamed answer of a running server, read in a thread while a test does something to the server."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from typing import Any

from support.server import ServerProcess


class OpenStream:
    """A long streamed completion. `id` is the request's public id, `front` the front that it names."""

    def __init__(self, server: ServerProcess, tokens: int = 4000) -> None:
        body = {"prompt": [5, 6, 7], "max_tokens": tokens, "stream": True, "ignore_eos": True, "temperature": 0}
        self._open(server, "POST", "/v1/completions", body)
        self.first = self.answer.readline()
        self.id = self.answer.headers["X-Request-Id"]
        self.front = int(self.id.removeprefix("cmpl-")[:2], 16)
        self.rest = b""
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    @classmethod
    def get(cls, server: ServerProcess, path: str) -> OpenStream:
        """Any streamed answer; nothing of it is read."""
        stream = cls.__new__(cls)
        stream._open(server, "GET", path, None)
        return stream

    def _open(self, server: ServerProcess, method: str, path: str, body: Any) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        raw = None if body is None else json.dumps(body)
        self.connection.request(method, path, raw, {"Content-Type": "application/json"})
        self.answer = self.connection.getresponse()
        assert self.answer.status == 200

    def _read(self) -> None:
        try:
            self.rest = self.answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.rest = repr(error).encode()

    def leave(self) -> None:
        """As a client that goes away."""
        assert self.connection.sock is not None
        self.connection.sock.shutdown(socket.SHUT_RDWR)
        if hasattr(self, "thread"):
            self.thread.join(10.0)
        self.connection.close()

    def end(self, seconds: float = 20.0) -> bytes:
        """What came after the first line, once the stream is over."""
        self.thread.join(seconds)
        assert not self.thread.is_alive(), "the stream never ends"
        self.connection.close()
        return self.rest
