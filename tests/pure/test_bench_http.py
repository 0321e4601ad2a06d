"""The client's HTTP: every framing, kept connections that have gone stale, peers that break off."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from tsd.bench.http import (
    BadResponse,
    ConnectFailed,
    ConnectionBroken,
    HttpError,
    Origin,
    Pool,
    Response,
    render_request,
)

OK = b"HTTP/1.1 200 OK\r\n"
Answers = list[list[bytes]]
"""For each connection in turn, the bytes that answer each of its requests; b"" at the end of a list closes it."""


async def fetch_all(answers: Answers, requests: int, pause: float = 0.0) -> tuple[list[Response], int]:
    """Send `requests` one after the other to a server that answers by script; the responses and its connections."""
    connections = 0
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        script = answers[connections]
        writers.append(writer)
        connections += 1
        try:
            for answer in script:
                if not answer:
                    break
                await reader.readuntil(b"\r\n\r\n")
                for at in range(0, len(answer), 7):  # small pieces: heads and sizes arrive cut
                    writer.write(answer[at : at + 7])
                    await writer.drain()
            else:
                await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    pool = Pool(Origin("http", "127.0.0.1", server.sockets[0].getsockname()[1], ""))
    found = []
    try:
        for _ in range(requests):
            async with asyncio.timeout(10):
                found.append(await pool.fetch("GET", "/x"))
            await asyncio.sleep(pause)
    finally:
        pool.close()
        server.close()
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0.02)  # the server's side lets go of its sockets
    return found, connections


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await body()

    asyncio.run(main())
    uvloop.run(main())


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (OK + b"Content-Length: 5\r\n\r\nhello", b"hello"),
        (OK + b"content-length:0\r\n\r\n", b""),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", b"hello"),
        (
            OK + b"Transfer-Encoding: chunked\r\n\r\n2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\nTrailer: a\r\nOther: b\r\n\r\n",
            b"hello",
        ),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 5\r\n\r\nhello", b"hello"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    ],
)
def test_framings_keep_the_connection(answer: bytes, body: bytes) -> None:
    async def test() -> None:
        found, connections = await fetch_all([[answer, answer]], 2)
        assert [response.body for response in found] == [body, body] and connections == 1

    run(test)


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"Connection: close\r\nContent-Length: 5\r\n\r\nhello",
        OK + b"\r\nhello",
        b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    ],
)
def test_connections_that_close_are_not_kept(answer: bytes) -> None:
    async def test() -> None:
        found, connections = await fetch_all([[answer, b""], [answer, b""]], 2)
        assert [response.body for response in found] == [b"hello"] * 2 and connections == 2

    run(test)


def test_a_kept_connection_that_went_stale_is_replaced() -> None:
    async def test() -> None:
        answer = OK + b"Content-Length: 2\r\n\r\nok"
        for pause in (0.05, 0.0):  # noticed before the next request, and raced by it
            found, connections = await fetch_all([[answer, b""], [answer, answer]], 3, pause)
            assert len(found) == 3 and connections == 2

    run(test)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (OK + b"Content-Length: 50\r\n\r\nhello", ConnectionBroken),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n50\r\nhello", ConnectionBroken),
        (OK + b"Content-Le", ConnectionBroken),
        (OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n", BadResponse),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", BadResponse),
        (b"HTTP/1.1 abc\r\n\r\n", BadResponse),
        (OK + b"a: " + b"x" * 70_000, BadResponse),
    ],
)
def test_broken_answers_are_errors(answer: bytes, error: type[HttpError]) -> None:
    async def test() -> None:
        with pytest.raises(error):
            await fetch_all([[answer, b""]], 1)

    run(test)


def test_nobody_listens() -> None:
    async def test() -> None:
        with pytest.raises(ConnectFailed, match="cannot connect"):
            await Pool(Origin("http", "127.0.0.1", 9, "")).fetch("GET", "/")

    run(test)


def test_chunks_cut_anywhere_give_the_same_body() -> None:
    source = random.Random(3)
    body = source.randbytes(3000)
    framed, at = b"", 0
    while at < len(body):
        size = source.randint(1, 200)
        piece = body[at : at + size]
        framed += b"%x\r\n%s\r\n" % (len(piece), piece)
        at += size
    answer = OK + b"Transfer-Encoding: chunked\r\n\r\n" + framed + b"0\r\n\r\n"

    async def test() -> None:
        found, _ = await fetch_all([[answer]], 1)
        assert found[0].body == body

    run(test)


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("http://h:1234/v/", Origin("http", "h", 1234, "/v")),
        ("h:80", Origin("http", "h", 80, "")),
        ("https://h", Origin("https", "h", 443, "")),
        ("http://[::1]:8", Origin("http", "::1", 8, "")),
    ],
)
def test_origins(url: str, origin: Origin) -> None:
    assert Origin.parse(url) == origin


@pytest.mark.parametrize("url", ["ftp://h", "http://", "http:///x", "http://h:port"])
def test_bad_origins(url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Origin.parse(url)


def test_requests_are_rendered_whole() -> None:
    request = render_request(Origin("http", "::1", 8, "/p"), "POST", "/v1/x", b"{}", "key")
    head, body = request.split(b"\r\n\r\n")
    assert head.startswith(b"POST /p/v1/x HTTP/1.1\r\nHost: [::1]:8\r\n") and body == b"{}"
    assert b"Authorization: Bearer key" in head and b"Content-Length: 2" in head
    assert b"Content-Length" not in render_request(Origin("http", "h", 8, ""), "GET", "/")
