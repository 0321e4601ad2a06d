"""The link to a server: every way in which it can be wrong, against a server that does what a script says."""

from __future__ import annotations

import asyncio

import pytest
from support.console import HEAD, Heard, event, scripted, small

from tsd.console.actions import ABORT, LOG_LEVEL, PAUSE, Operator
from tsd.console.demo import DemoFleet
from tsd.console.demo_http import DemoServer
from tsd.console.errors import ActionFailed, KeyRefused, ReadOnly, ServerDown, UsageError
from tsd.console.http import parse_url
from tsd.console.link import LinkState
from tsd.console.source import ServerSource

FAST = {"backoff_s": (0.01,), "stale_s": 0.3, "drop_s": 0.6, "connect_s": 1.0}


def heard(url, holds, key=None, **options):
    """What a sink hears from `url` until `holds`."""

    async def run(address):
        sink = Heard()
        task = asyncio.create_task(ServerSource(address, key, 0.5, **(FAST | options)).run(sink))
        try:
            await sink.until(holds)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        return sink

    return run(url)


def against(script, holds, **options):
    async def run():
        async with scripted(script) as url:
            return await heard(url, holds, **options)

    return asyncio.run(run())


def reply(head: bytes, body: bytes = b""):
    async def script(number, request, writer):
        writer.write(head + b"\r\n\r\n" + body)

    return script


def test_live_from_a_server_that_chunks():
    async def run():
        async with DemoServer(DemoFleet(2, 8, 256)).running() as url:
            return await heard(url, lambda sink: len(sink.snapshots) >= 2, stale_s=5)

    sink = asyncio.run(run())
    assert sink.states == [LinkState.CONNECTING, LinkState.LIVE]
    assert sink.snapshots[0].server.model == "Qwen3-8B" and sink.snapshots[0].engines[0].kernels
    assert not sink.snapshots[1].engines[0].kernels


def test_the_request_carries_interval_and_key():
    seen = []

    async def script(number, request, writer):
        seen.append(request)
        writer.write(HEAD + event(small()))

    against(script, lambda sink: sink.snapshots, key="s3cret")
    assert seen[0].startswith("GET /admin/stream?interval=0.5 HTTP/1.1\r\n")
    assert "\r\nAuthorization: Bearer s3cret\r\n" in seen[0]


def test_nothing_listens():
    async def run():
        server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        return await heard(f"http://127.0.0.1:{port}", lambda sink: len(sink.links) >= 3)

    sink = asyncio.run(run())
    assert set(sink.states[1:]) == {LinkState.DOWN}
    assert "connection refused" in sink.links[1].detail and sink.links[1].retry_s == 0.01
    assert sink.links[2].attempt == 2


def test_a_name_that_does_not_exist():
    sink = asyncio.run(heard("http://no-such-host.invalid:80", lambda sink: len(sink.links) >= 2))
    assert sink.states[1] is LinkState.DOWN and "cannot reach no-such-host.invalid:80" in sink.links[1].detail


@pytest.mark.parametrize("status", [401, 403])
def test_a_wrong_key(status):
    sink = against(reply(f"HTTP/1.1 {status} No".encode()), lambda sink: len(sink.links) >= 2)
    assert sink.states[1] is LinkState.REFUSED and "key" in sink.links[1].detail


@pytest.mark.parametrize(
    ("head", "word"),
    [
        (b"HTTP/1.1 404 Not Found", "is no tsd server"),
        (b"HTTP/1.1 404 Not Found\r\nServer: tsd/0.0.1", "is too old"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/html", "sends text/html"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://elsewhere/", "http://elsewhere/"),
        (b"SSH-2.0-OpenSSH_9.6", "not with HTTP"),
        (b"HTTP/1.1 999999 \xff", "not with HTTP"),
    ],
)
def test_something_else_answers(head, word):
    sink = against(reply(head, b"<html>"), lambda sink: len(sink.links) >= 2)
    assert sink.states[1] is LinkState.FOREIGN and word in sink.links[1].detail


def test_a_server_error_is_a_server_that_is_down():
    sink = against(reply(b"HTTP/1.1 503 Starting"), lambda sink: len(sink.links) >= 2)
    assert sink.states[1] is LinkState.DOWN and "503" in sink.links[1].detail


def test_another_version_of_the_snapshot():
    sink = against(
        reply(HEAD[:-4], event('{"version": 7, "engines": []}')), lambda sink: LinkState.FOREIGN in sink.states
    )
    assert "version 7" in sink.links[-1].detail


def test_one_bad_event_is_survived():
    async def script(number, request, writer):
        writer.write(HEAD + event("nonsense") + b": ping\n\n" + event(small(2)))
        await asyncio.sleep(5)

    sink = against(script, lambda sink: sink.snapshots)
    assert sink.states == [LinkState.CONNECTING, LinkState.GARBAGE, LinkState.LIVE]


def test_garbage_without_end_is_given_up_and_tried_again():
    connections = []

    async def script(number, request, writer):
        connections.append(number)
        writer.write(HEAD + event("1") * 50)
        await asyncio.sleep(5)

    sink = against(script, lambda sink: len(connections) >= 2 and len(sink.links) >= 4)
    assert set(sink.states[1:]) == {LinkState.GARBAGE} and not sink.snapshots


def test_a_line_without_end_is_cut_off():
    async def script(number, request, writer):
        writer.write(HEAD + b"data: ")
        for _ in range(400):
            writer.write(b"x" * 65536)
            await writer.drain()

    sink = against(script, lambda sink: len(sink.links) >= 2, stale_s=5, drop_s=9)
    assert sink.states[1] is LinkState.GARBAGE and "MiB" in sink.links[1].detail


def test_a_server_that_stalls_is_stale_then_given_up():
    async def script(number, request, writer):
        writer.write(HEAD + event(small()))
        await writer.drain()
        await asyncio.sleep(30)

    sink = against(script, lambda sink: LinkState.DOWN in sink.states)
    assert sink.states[1:4] == [LinkState.LIVE, LinkState.STALE, LinkState.DOWN]


def test_a_stall_that_ends_is_live_again():
    async def script(number, request, writer):
        writer.write(HEAD + event(small(1)))
        await writer.drain()
        await asyncio.sleep(0.45)
        half = event(small(2))
        writer.write(half[:20])
        await writer.drain()
        await asyncio.sleep(0.01)
        writer.write(half[20:])
        await writer.drain()
        await asyncio.sleep(30)

    sink = against(script, lambda sink: len(sink.snapshots) == 2)
    assert sink.states == [LinkState.CONNECTING, LinkState.LIVE, LinkState.STALE, LinkState.LIVE]


def test_a_server_that_never_answers():
    async def script(number, request, writer):
        await asyncio.sleep(30)

    sink = against(script, lambda sink: len(sink.links) >= 2, connect_s=0.2)
    assert sink.states[1] is LinkState.DOWN and "does not answer" in sink.links[1].detail


def test_a_restart_reconnects():
    async def script(number, request, writer):
        writer.write(HEAD + event(small(float(number))))
        if number > 1:
            await writer.drain()
            await asyncio.sleep(30)

    sink = against(script, lambda sink: len(sink.snapshots) == 2)
    assert sink.states == [LinkState.CONNECTING, LinkState.LIVE, LinkState.DOWN, LinkState.LIVE]
    assert "closed the stream" in sink.links[2].detail


@pytest.mark.parametrize("body", [b"5\r\nabcde\r\nzz\r\n", b"-1\r\n", b"ffff\r\nabc"])
def test_broken_chunks(body):
    head = HEAD[:-4] + b"\r\nTransfer-Encoding: chunked"
    sink = against(reply(head, body), lambda sink: len(sink.links) >= 2)
    assert sink.states[1] in (LinkState.GARBAGE, LinkState.DOWN)


@pytest.mark.parametrize(
    "url", ["", "ftp://x", "http://", "http://h:99999", "http://user:pw@h", "http://a b", "http://h\n:1"]
)
def test_a_url_that_is_none(url):
    with pytest.raises(UsageError):
        parse_url(url)


def test_urls():
    assert parse_url("localhost:9") == parse_url("http://localhost:9/")
    assert parse_url("https://h/base/").path == "/base" and parse_url("https://h").port == 443
    assert parse_url("http://[::1]:8000").host == "::1"


def test_actions_reach_the_server():
    async def run():
        server = DemoServer(DemoFleet(1, 8, 256), key="k")
        for _ in range(5):
            server.fleet.tick()
        request = server.fleet.engines[0].running[0].id
        async with server.running() as url:
            operator = Operator(url, "k")
            assert await operator.act(PAUSE) == "done"
            assert server.fleet.state == "paused"
            await operator.act(LOG_LEVEL, {"level": "debug"})
            assert (await operator.request_detail(request))["timeline"][0][1] == "queued"
            assert (await operator.page_detail(0, 3))["pages"]
            assert (await operator.kernels())[0]["kernels"]
            await operator.act(ABORT, {"request_id": request})
            with pytest.raises(ActionFailed, match="no request"):
                await operator.act(ABORT, {"request_id": request})
            with pytest.raises(KeyRefused):
                await Operator(url, "wrong").act(PAUSE)
            with pytest.raises(ReadOnly):
                await Operator(url, "k", read_only=True).act(PAUSE)
        with pytest.raises(ServerDown):
            await operator.act(PAUSE)
        assert ("log level", {"level": "debug"}) in server.operator.done

    asyncio.run(run())


def test_an_action_the_server_refuses_says_why():
    async def run():
        async with scripted(reply(b"HTTP/1.1 409 Conflict", b'{"error": {"message": "already draining"}}')) as url:
            with pytest.raises(ActionFailed, match="already draining"):
                await Operator(url).act(PAUSE)

    asyncio.run(run())
