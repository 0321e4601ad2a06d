"""A scripted OpenAI-compatible server on raw asyncio, which remembers when it received and sent things.

It owns no model: each request is answered by a `Script`. Used to prove what a client measures, and how it fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any


@dataclass
class Script:
    """How one request is answered. `delays[i]` is slept before chunk i, of `tokens[i]` tokens (default 1)."""

    delays: list[float]
    tokens: list[int] | None = None
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    usage: bool = True
    chunk_usage: bool = False
    token_ids: bool = False
    empty_first: bool = False
    field_name: str = "text"
    status: int = 200
    error: str = ""
    die_after: int | None = None
    """Drop the connection after so many chunks."""
    hang_after: int | None = None
    """Send nothing more after so many chunks."""
    stream_error_after: int | None = None
    split_bytes: int = 0
    """Cut the body into pieces of so many bytes."""


@dataclass
class Seen:
    """One request as the server saw it."""

    path: str
    body: dict[str, Any]
    received: float
    sent: list[float] = field(default_factory=list)


class FakeServer:
    """Runs in a thread of its own; `answer` gives the script for a request's body."""

    def __init__(
        self, answer: Callable[[dict[str, Any]], Script], model: str = "fake", routes: dict[str, Any] | None = None
    ):
        self.answer, self.model = answer, model
        self.routes = routes if routes is not None else {}
        self.seen: list[Seen] = []
        self.port = 0
        self.connections = 0
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._main, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def completions(self) -> list[Seen]:
        """Measured requests: the trial request of the client is left out."""
        return [seen for seen in self.seen if "completions" in seen.path and seen.body.get("max_tokens") != 4]

    def start(self) -> FakeServer:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def stop(self) -> None:
        """Close the port and every connection."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._shutdown)
            self._thread.join(10)

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=512))
        self.port = self._server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0.01))
        self._loop.close()

    def _shutdown(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        self._loop.call_later(0.01, self._loop.stop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        self.connections += 1
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                while await self._one(reader, writer):
                    pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        received = perf_counter()
        method, path, _ = head.split("\r\n", 1)[0].split(" ")
        length = next((int(line[15:]) for line in head.split("\r\n") if line.lower().startswith("content-length:")), 0)
        body = json.loads(await reader.readexactly(length)) if length else {}
        seen = Seen(path, body, received)
        self.seen.append(seen)
        if path == "/v1/models":
            self._json(writer, 200, {"data": [{"id": self.model, "max_model_len": 16384}]})
        elif path in self.routes:
            route = self.routes[path]
            self._json(writer, 200, route(body) if callable(route) else route)
        elif method == "POST" and path.startswith("/v1/"):
            if body.get("model") != self.model:
                self._json(writer, 404, {"error": {"message": f"model {body.get('model')} does not exist"}})
            else:
                return await self._stream(writer, seen, self.answer(body))
        else:
            self._json(writer, 404, {"error": {"message": "not found"}})
        await writer.drain()
        return True

    def _json(self, writer: asyncio.StreamWriter, status: int, value: Any) -> None:
        payload = value.encode() if isinstance(value, str) else json.dumps(value).encode()
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(payload)}\r\n\r\n".encode() + payload)

    async def _stream(self, writer: asyncio.StreamWriter, seen: Seen, script: Script) -> bool:
        if script.status != 200:
            self._json(writer, script.status, {"error": {"message": script.error}})
            await writer.drain()
            return True
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        tokens = script.tokens or [1] * len(script.delays)
        total = 0
        if script.empty_first:
            self._event(writer, script, {"choices": [{"delta": {"role": "assistant"}, "finish_reason": None}]})
        for number, (delay, count) in enumerate(zip(script.delays, tokens, strict=True)):
            if number in (script.hang_after, script.die_after, script.stream_error_after):
                break
            await asyncio.sleep(delay)
            total += count
            chunk = self._chunk(script, number, count, total, number + 1 == len(tokens))
            seen.sent.append(perf_counter())
            self._event(writer, script, chunk)
            await writer.drain()
        if script.hang_after is not None:
            await asyncio.sleep(3600)
        if script.die_after is not None:
            writer.transport.abort()
            return False
        if script.stream_error_after is not None:
            self._event(writer, script, {"error": {"message": "the engine died"}})
        elif script.usage:
            self._event(writer, script, {"choices": [], "usage": self._usage(script, seen.body, total)})
        self._write(writer, script, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    def _chunk(self, script: Script, number: int, count: int, total: int, last: bool) -> dict[str, Any]:
        text = " w" * count
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length" if last else None}
        if script.field_name == "text":
            choice["text"] = text
        else:
            choice["delta"] = {script.field_name: text}
        if script.token_ids:
            choice["token_ids"] = list(range(100 + total - count, 100 + total))
        chunk: dict[str, Any] = {"id": "x", "choices": [choice]}
        if script.chunk_usage:
            chunk["usage"] = {"prompt_tokens": 1, "completion_tokens": total}
        return chunk

    def _usage(self, script: Script, body: dict[str, Any], total: int) -> dict[str, Any]:
        prompt = body.get("prompt", "")
        length = script.prompt_tokens if script.prompt_tokens is not None else len(prompt)
        details = {"cached_tokens": script.cached_tokens}
        return {"prompt_tokens": length, "completion_tokens": total, "prompt_tokens_details": details}

    def _event(self, writer: asyncio.StreamWriter, script: Script, value: dict[str, Any]) -> None:
        self._write(writer, script, b"data: " + json.dumps(value).encode() + b"\n\n")

    def _write(self, writer: asyncio.StreamWriter, script: Script, payload: bytes) -> None:
        framed = f"{len(payload):x}\r\n".encode() + payload + b"\r\n"
        if script.split_bytes:
            for at in range(0, len(framed), script.split_bytes):
                writer.write(framed[at : at + script.split_bytes])
        else:
            writer.write(framed)


@contextlib.contextmanager
def fake_server(answer: Callable[[dict[str, Any]], Script], **kwargs: Any) -> Iterator[FakeServer]:
    """A running server for a `with` block."""
    server = FakeServer(answer, **kwargs).start()
    try:
        yield server
    finally:
        server.stop()
