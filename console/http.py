"""A small HTTP/1.1 client on asyncio streams: one request, a status, and a body read piece by piece.

Owns the wire and its errors; knows nothing about snapshots. It exists because the console must start in a blink and
needs two verbs only. No redirects (a key must not travel elsewhere), no proxies, no keep-alive.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from urllib.parse import urlsplit

from tsd.console.errors import ForeignServer, GarbageStream, ServerDown, UsageError

Pieces = AsyncGenerator[bytes, None]

PIECE = 1 << 16
HEAD_LIMIT = 1 << 16


@dataclass(frozen=True)
class Address:
    """Where a server is: the parts of its base URL."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def secure(self) -> bool:
        return self.scheme == "https"


def parse_url(url: str) -> Address:
    """The address in `url`. Raises UsageError for anything but http(s)://host[:port][/path]."""
    text = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"--url {url}: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"--url {url}: not a server's address (expected something like http://127.0.0.1:8000)")
    if parts.username or parts.password:
        raise UsageError(f"--url {parts.hostname}: keys go into --admin-key, not into the address")
    path = parts.path.rstrip("/")
    if any(c.isspace() or not c.isprintable() for c in url):
        raise UsageError("--url: the address holds blanks or control characters")
    return Address(parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80), path)


class Response:
    """Status and headers (lower-case names) of an answer; the body follows by `pieces` or `text`."""

    def __init__(
        self, status: int, headers: dict[str, str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ):
        self.status = status
        self.headers = headers
        self._reader = reader
        self._writer = writer

    async def pieces(self) -> Pieces:
        """The body as it arrives, until the server ends it. Raises ServerDown when it breaks off."""
        try:
            if self.headers.get("transfer-encoding", "").lower() == "chunked":
                async for piece in self._chunks():
                    yield piece
            else:
                left = int(self.headers.get("content-length", -1))
                while left and (piece := await self._reader.read(PIECE if left < 0 else min(PIECE, left))):
                    left -= len(piece) if left > 0 else 0
                    yield piece
        except (OSError, EOFError) as error:
            raise ServerDown(f"the connection broke off ({reason(error)})") from None
        except ValueError as error:
            raise GarbageStream(f"the server does not speak proper HTTP ({error})") from None

    async def _chunks(self) -> Pieces:
        while True:
            line = await self._reader.readline()
            if not line:
                raise EOFError("the server went away")
            left = int(line.split(b";")[0].strip() or b"0", 16)
            if left < 0:
                raise ValueError("negative chunk size")
            if not left:
                return
            while left:
                piece = await self._reader.read(min(PIECE, left))
                if not piece:
                    raise EOFError("the server went away")
                left -= len(piece)
                yield piece
            await self._reader.readexactly(2)

    async def text(self, limit: int = 8 << 20) -> bytes:
        """The whole body, at most `limit` bytes of it."""
        parts: list[bytes] = []
        length = 0
        async for piece in self.pieces():
            parts.append(piece)
            length += len(piece)
            if length > limit:
                break
        return b"".join(parts)[:limit]

    def close(self) -> None:
        self._writer.close()


async def request(
    method: str,
    address: Address,
    path: str,
    headers: dict[str, str] | None = None,
    body: bytes = b"",
    timeout: float = 5.0,
) -> Response:
    """Sends one request and reads the head of the answer within `timeout` seconds; the caller closes the response.

    Raises ServerDown when nothing answers and ForeignServer when what answers is not HTTP.
    """
    writer: asyncio.StreamWriter | None = None
    where = f"{address.host}:{address.port}"
    try:
        async with asyncio.timeout(timeout):
            context = ssl.create_default_context() if address.secure else None
            reader, writer = await asyncio.open_connection(address.host, address.port, ssl=context, limit=HEAD_LIMIT)
            writer.write(_head(method, address, path, headers or {}, body))
            await writer.drain()
            status, found = await _read_head(reader)
            return Response(status, found, reader, writer)
    except TimeoutError:
        _close(writer)
        raise ServerDown(f"{where} does not answer (waited {timeout:g} s)") from None
    except (OSError, EOFError) as error:
        _close(writer)
        raise ServerDown(f"cannot reach {where} ({reason(error)})") from None
    except (ValueError, UnicodeError):
        _close(writer)
        raise ForeignServer(f"{where} answers, but not with HTTP") from None
    except BaseException:
        _close(writer)
        raise


def _close(writer: asyncio.StreamWriter | None) -> None:
    if writer is not None:
        writer.close()


def _head(method: str, address: Address, path: str, headers: dict[str, str], body: bytes) -> bytes:
    host = f"[{address.host}]" if ":" in address.host else address.host
    lines = [f"{method} {address.path}{path} HTTP/1.1", f"Host: {host}:{address.port}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body or method != "GET":
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    line = await reader.readline()
    if not line:
        raise EOFError("the server closed the connection")
    version, _, rest = line.decode("latin-1").partition(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError("not HTTP")
    status = int(rest[:3])
    if not 100 <= status <= 599 or rest[3:4].isdigit():
        raise ValueError("not HTTP")
    headers: dict[str, str] = {}
    while (line := await reader.readline()) not in (b"\r\n", b"\n", b""):
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon or len(headers) > 200:
            raise ValueError("not HTTP")
        headers[name.strip().lower()] = value.strip()
    return status, headers


def reason(error: BaseException) -> str:
    """An operating-system error as a few words."""
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, ConnectionResetError):
        return "connection reset"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}"
    if "Connect call failed" in str(error):
        return "connection refused"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__
