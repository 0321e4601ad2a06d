"""A minimal HTTP/1.1 client on asyncio protocols: one connection, one exchange at a time.

Owns framing (content-length, chunked, until-close) and keep-alive. Knows nothing about JSON, SSE or measurements.
General clients spend more time per received chunk than the servers we measure spend making it; here a chunk costs one
callback, and the moment it reached the process is taken before anything else is done with it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple
from urllib.parse import urlsplit

_MAX_HEAD = 64 * 1024

BodySink = Callable[[int, bytes, float], None]
"""Called with the status, each piece of body, and the `perf_counter` time at which its bytes were received."""


class HttpError(Exception):
    """The exchange failed below the level of a status code."""


class ConnectFailed(HttpError):
    """No connection could be made."""


class ConnectionBroken(HttpError):
    """The peer closed or broke the connection before the response was complete."""


class BadResponse(HttpError):
    """The peer sent something that is not HTTP/1.x."""


class Origin(NamedTuple):
    """Where requests go; `prefix` is the path of the base URL, without a trailing slash."""

    scheme: str
    host: str
    port: int
    prefix: str

    @classmethod
    def parse(cls, url: str) -> Origin:
        """Raises ValueError for anything but http(s)://host[:port][/prefix]."""
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"not an http URL: {url!r}")
        port = parts.port or (443 if parts.scheme == "https" else 80)
        return cls(parts.scheme, parts.hostname, port, parts.path.rstrip("/"))

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}{self.prefix}"


class Head(NamedTuple):
    """Status line and headers (names in lower case)."""

    status: int
    headers: dict[str, str]


class Response(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


def render_request(origin: Origin, method: str, path: str, body: bytes = b"", api_key: str | None = None) -> bytes:
    """The bytes of a whole request; a body is sent as JSON."""
    host = f"[{origin.host}]" if ":" in origin.host else origin.host
    head = f"{method} {origin.prefix}{path} HTTP/1.1\r\nHost: {host}:{origin.port}\r\nUser-Agent: tsd-bench\r\n"
    if api_key:
        head += f"Authorization: Bearer {api_key}\r\n"
    if body or method == "POST":
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode("latin-1") + b"\r\n" + body


class Connection(asyncio.Protocol):
    """One socket. `exchange` sends a request and resolves to the response's head once its body is complete."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[Head] | None = None
        self._sink: BodySink | None = None
        self._buffer = b""
        self._head: Head | None = None
        self._chunked = False
        self._left = 0  # bytes still to come of this chunk or body; -1: until the peer closes
        self._closing_after = False
        self.received_any = False
        self.usable = False

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]
        self.usable = True

    def data_received(self, data: bytes) -> None:
        now = perf_counter()
        self.received_any = True
        if self._done is None or self._done.done():
            self.close()  # bytes that nobody asked for
            return
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        try:
            if self._head is None:
                data = self._read_head(data)
                if self._head is None:
                    return
            self._read_body(data, now)
        except (ValueError, HttpError) as error:
            self._fail(error if isinstance(error, HttpError) else BadResponse(str(error)))

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        if self._done is None or self._done.done():
            return
        if exc is None and self._head is not None and self._left == -1:
            self._finish()
        else:
            what = "before answering" if self._head is None else "in the middle of its answer"
            self._fail(ConnectionBroken(f"the server closed the connection {what}" + (f" ({exc})" if exc else "")))

    # -- framing

    def _read_head(self, data: bytes) -> bytes:
        while True:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                if len(data) > _MAX_HEAD:
                    raise BadResponse("the response head has no end")
                self._buffer = data
                return b""
            lines = data[:end].decode("latin-1").split("\r\n")
            data = data[end + 4 :]
            parts = lines[0].split(" ", 2)
            if len(parts) < 2 or not parts[0].startswith("HTTP/1.") or not parts[1].isdigit():
                raise BadResponse(f"not an HTTP response: {lines[0][:80]!r}")
            status = int(parts[1])
            if status >= 200:
                break  # 1xx heads are skipped
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        self._head = Head(status, headers)
        connection = headers.get("connection", "").lower()
        self._closing_after = "close" in connection or (parts[0] == "HTTP/1.0" and "keep-alive" not in connection)
        self._chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        if self._chunked or status in (204, 304):
            self._left = 0
        elif "content-length" in headers:
            self._left = int(headers["content-length"])
        else:
            self._left, self._closing_after = -1, True
        if not self._chunked and self._left == 0:
            self._finish()
        return data

    def _read_body(self, data: bytes, now: float) -> None:
        if self._done is None or self._done.done() or not data:
            return
        sink = self._sink
        assert sink is not None and self._head is not None
        status = self._head.status
        if not self._chunked:
            if self._left > 0:
                data = data[: self._left]
                self._left -= len(data)
            sink(status, data, now)
            if self._left == 0:
                self._finish()
            return
        at, end = 0, len(data)
        while at < end:
            if self._left > 0:  # inside a chunk: payload and its CRLF
                take = min(self._left, end - at)
                payload = data[at : at + min(take, max(0, self._left - 2))]
                if payload:
                    sink(status, payload, now)
                at += take
                self._left -= take
                continue
            line_end = data.find(b"\r\n", at)
            if line_end < 0:
                break
            line = data[at:line_end]
            if self._left == -2:  # trailers, up to an empty line
                at = line_end + 2
                if not line:
                    self._finish()
                    return
                continue
            size = int(line.partition(b";")[0], 16)
            if size < 0:
                raise BadResponse("a chunk of negative size")
            at = line_end + 2
            self._left = size + 2 if size else -2
        self._buffer = data[at:]

    def _finish(self) -> None:
        assert self._done is not None and self._head is not None
        if not self._done.done():
            self._done.set_result(self._head)
        if self._closing_after:
            self.close()

    def _fail(self, error: HttpError) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)
        self.close()

    # -- use

    def exchange(self, request: bytes, sink: BodySink) -> asyncio.Future[Head]:
        """Send; the future ends with the head after the last byte of body, or with an HttpError."""
        assert self._transport is not None and self.usable
        self._done = asyncio.get_running_loop().create_future()
        self._sink, self._head, self._buffer, self._left, self.received_any = sink, None, b"", 0, False
        self._transport.write(request)
        return self._done

    def close(self) -> None:
        self.usable = False
        if self._transport is not None:
            self._transport.abort()


class Pool:
    """Keep-alive connections to one origin; a connection is lent to one exchange at a time."""

    def __init__(self, origin: Origin, connect_timeout_s: float = 30.0, insecure: bool = False) -> None:
        self.origin = origin
        self._idle: list[Connection] = []
        self._timeout = connect_timeout_s
        self._ssl: ssl.SSLContext | None = None
        if origin.scheme == "https":
            self._ssl = ssl.create_default_context()
            if insecure:
                self._ssl.check_hostname = False
                self._ssl.verify_mode = ssl.CERT_NONE

    async def open(self, count: int) -> None:
        """Have that many idle connections, as far as the server lets us: what fails here is told when it matters."""
        opened = await asyncio.gather(*(self._connect() for _ in range(count)), return_exceptions=True)
        for connection in opened:
            if isinstance(connection, Connection):
                self._idle.append(connection)
            elif not isinstance(connection, ConnectFailed):
                raise connection

    async def exchange(self, request: bytes, sink: BodySink) -> Head:
        """One exchange. A kept connection that the peer had already closed is replaced, once, by a fresh one."""
        kept = self._take()
        if kept is not None:
            try:
                return await self._run(kept, request, sink)
            except ConnectionBroken:
                if kept.received_any:
                    raise
        return await self._run(await self._connect(), request, sink)

    async def fetch(self, method: str, path: str, body: bytes = b"", api_key: str | None = None) -> Response:
        """A small request whose whole body is wanted."""
        pieces: list[bytes] = []
        request = render_request(self.origin, method, path, body, api_key)
        head = await self.exchange(request, lambda _status, data, _now: pieces.append(data))
        return Response(head.status, head.headers, b"".join(pieces))

    async def _run(self, connection: Connection, request: bytes, sink: BodySink) -> Head:
        try:
            head = await connection.exchange(request, sink)
        except BaseException:
            connection.close()  # cancelled or broken: the server must see that we are gone
            raise
        if connection.usable:
            self._idle.append(connection)
        return head

    def _take(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout):
                _, connection = await loop.create_connection(
                    Connection, self.origin.host, self.origin.port, ssl=self._ssl
                )
        except TimeoutError:
            raise ConnectFailed(f"no connection to {self.origin} within {self._timeout:g} s") from None
        except OSError as error:
            raise ConnectFailed(f"cannot connect to {self.origin}: {error.strerror or error}") from None
        return connection

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()
