"""The demo fleet behind the admin routes of a real server, on loopback: for the console's tests and its cost figure.

    python -m tsd.console.demo_http --port 8000 --engines 8 --requests 1000 --pages 1000000

Owns just enough HTTP for that. Knows nothing about screens.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import parse_qs, urlsplit

import msgspec

from tsd.console.actions import ACTIONS
from tsd.console.demo import DemoFleet
from tsd.console.demo_source import DemoOperator
from tsd.console.errors import CommandError


class DemoServer:
    """Serves one fleet. The fleet ticks once a snapshot, so only one console should follow the stream."""

    def __init__(self, fleet: DemoFleet, key: str | None = None) -> None:
        self.fleet = fleet
        self.key = key
        self.operator = DemoOperator(fleet)
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def running(self, port: int = 0) -> AsyncIterator[str]:
        """Serves while the block runs; yields the URL."""
        server = await asyncio.start_server(self._answer, "127.0.0.1", port)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._route(reader, writer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            # The console went away, or `running` ends.
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _route(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method, target, _ = (await reader.readline()).decode("latin-1").split(" ", 2)
        headers: dict[str, str] = {}
        while (line := (await reader.readline()).decode("latin-1").strip()) != "":
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        url = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        if self.key is not None and headers.get("authorization") != f"Bearer {self.key}":
            self._send(writer, 401, {"error": {"message": "a valid admin key is needed"}})
        elif url.path == "/admin/stream":
            await self._stream(writer, max(0.0, float(query.get("interval", 1))))
        else:
            try:
                self._send(writer, 200, await self._act(method, url.path, query, body))
            except CommandError as error:
                self._send(writer, 404, {"error": {"message": str(error)}})

    async def _act(self, method: str, path: str, query: dict[str, str], body: bytes) -> object:
        if path == "/admin/requests":
            return await self.operator.request_detail(query.get("id", ""))
        if path == "/admin/pages":
            return await self.operator.page_detail(int(query.get("engine", 0)), int(query.get("bin", 0)))
        if path == "/admin/kernels":
            return {"engines": await self.operator.kernels()}
        for action in ACTIONS:
            if method == "POST" and action.path == path:
                return {"status": await self.operator.act(action, msgspec.json.decode(body or b"{}"))}
        raise CommandError(f"no route {method} {path}")

    async def _stream(self, writer: asyncio.StreamWriter, interval_s: float) -> None:
        head = "HTTP/1.1 200 OK\r\nServer: tsd\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head.encode())
        self.fleet.fresh = True
        while not writer.is_closing():
            self.fleet.tick(interval_s or 1.0)
            data = b"data: " + self.fleet.encode() + b"\n\n"
            writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            await writer.drain()
            await asyncio.sleep(interval_s)

    def _send(self, writer: asyncio.StreamWriter, status: int, answer: object) -> None:
        data = msgspec.json.encode(answer)
        head = f"HTTP/1.1 {status} -\r\nServer: tsd\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
        writer.write(f"{head}\r\nConnection: close\r\n\r\n".encode() + data)


async def serve(args: argparse.Namespace) -> None:
    fleet = DemoFleet(args.engines, args.requests, args.pages)
    for _ in range(args.warm):
        fleet.tick()
    async with DemoServer(fleet, args.key).running(args.port) as url:
        print(url, flush=True)
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve a made-up fleet's admin routes on loopback.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--requests", type=int, default=96, help="rows over all engines")
    parser.add_argument("--pages", type=int, default=65536, help="pages of each engine")
    parser.add_argument("--warm", type=int, default=60, help="seconds lived before the first snapshot")
    parser.add_argument("--key")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
