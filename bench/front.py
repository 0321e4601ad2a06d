"""What the front costs in CPU per streamed token: a microbenchmark (`tsd bench front`).

The front, or each of several, runs in a process of its own. This process plays both ends: an engine on a real Unix
socket that gives every stream one token a step, and the clients on loopback that read the streams.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import sys
import tempfile
import time
from array import array
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import uvloop

from tsd.api.options import EngineEndpoint, ServerOptions
from tsd.engine import transport
from tsd.engine.protocol import Abort, Finished, Heartbeat, Ready, Started, StepOutput, Submit, ToEngine

VOCAB = 32_000
TICKS = os.sysconf("SC_CLK_TCK")


class Figures(NamedTuple):
    fronts: int
    streams: int
    steps: int
    tokens: int
    front_cpu_us_per_token: float
    """Of all fronts together."""
    busiest_front_us_per_token: float
    """Of the front that used most: over all tokens, so that 1 / it bounds the tokens a second."""
    of_it_in_the_kernel: float
    bytes_per_token: float
    seconds: float
    rss_mb: float


class Engine:
    """Holds every request until `go`, then one token each a step."""

    def __init__(self, max_model_len: int = 1 << 20) -> None:
        self._max_model_len = max_model_len
        self.prompts: dict[transport.Channel[Any], dict[int, int]] = {}
        """Each front's requests: id → prompt tokens."""
        self._beats: asyncio.Task[None] | None = None

    async def listen(self, path: str) -> asyncio.AbstractServer:
        return await transport.listen(path, self._on_message, lambda channel, error: None, self._on_open)

    def _on_open(self, channel: transport.Channel[Any]) -> None:
        self.prompts[channel] = {}
        sizes = (self._max_model_len, 16, 1 << 16, 1024, 1 << 20)
        channel.send(Ready(0, "bench", "Bench", VOCAB, *sizes, "none", "none", 0.0, {}, ()))
        if self._beats is None:
            self._beats = asyncio.create_task(self._beat())

    @property
    def requests(self) -> int:
        return sum(map(len, self.prompts.values()))

    def _on_message(self, channel: transport.Channel[Any], message: ToEngine) -> None:
        if isinstance(message, Submit):
            self.prompts[channel][message.id] = len(message.prompt) // 4
        elif isinstance(message, Abort):
            self.prompts[channel].pop(message.id, None)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(1)
            for channel in self.prompts:
                channel.send(Heartbeat(0, self.requests, 0, 0))

    def start_all(self) -> None:
        for channel, prompts in self.prompts.items():
            channel.send(StepOutput(0, started=[Started(i, n, 0, 0.0) for i, n in prompts.items()]))

    async def run(self, steps: int, period_s: float) -> None:
        """A step is one message to each front."""
        fronts = [(channel, list(prompts), array("q", prompts).tobytes()) for channel, prompts in self.prompts.items()]
        loop = asyncio.get_running_loop()
        due = loop.time()
        for step in range(1, steps + 1):
            for channel, ids, packed in fronts:
                tokens = array("i", [(step * 7 + i) % VOCAB for i in range(len(ids))]).tobytes()
                finished = []
                if step == steps:
                    finished = [Finished(i, "length", n, 0, steps) for i, n in self.prompts[channel].items()]
                channel.send(StepOutput(step, packed, tokens, finished=finished))
            due += period_s
            await asyncio.sleep(max(0.0, due - loop.time()))

    async def close(self) -> None:
        if self._beats is not None:
            self._beats.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._beats


class Reader(asyncio.Protocol):
    """Sends one request and counts what comes back until the stream's end."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.received = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, connection: asyncio.BaseTransport) -> None:
        self.transport = connection  # type: ignore[assignment]
        assert self.transport is not None
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        if data.endswith(b"0\r\n\r\n") and not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)


class CpuTime(NamedTuple):
    user: float
    kernel: float


def cpu_time(pid: int) -> CpuTime:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return CpuTime(int(fields[11]) / TICKS, int(fields[12]) / TICKS)


def rss_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def http_request(path: str, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    return b"POST %b HTTP/1.1\r\nHost: bench\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(data)) + data


def write_config(folder: str) -> None:
    """A model folder without a tokenizer: text is token ids."""
    Path(folder, "config.json").write_text(json.dumps({"vocab_size": VOCAB}))


def listeners(count: int) -> list[socket.socket]:
    """Sockets on one free port."""
    found: list[socket.socket] = []
    for _ in range(count):
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(("127.0.0.1", found[0].getsockname()[1] if found else 0))
        listener.listen(4096)
        found.append(listener)
    return found


async def measure(fronts: int, streams: int, steps: int, period_s: float, body: dict[str, Any]) -> Figures:
    with tempfile.TemporaryDirectory(prefix="tsd-bench") as folder:
        write_config(folder)
        engine = Engine()
        listening = await engine.listen(f"{folder}/engine.sock")
        sockets = listeners(fronts)
        port = sockets[0].getsockname()[1]
        processes = []
        for number, listener in enumerate(sockets):
            options = ServerOptions(
                model=folder, port=port, request_log="", front=number, fronts=fronts, runtime_dir=folder
            )
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tsd.bench.front", "--serve", msgspec.json.encode(options).decode(),
                "--listen-fd", str(listener.fileno()), stdout=asyncio.subprocess.PIPE, pass_fds=(listener.fileno(),),
            )  # fmt: skip
            processes.append(process)
            listener.close()
        try:
            for process in processes:
                assert process.stdout is not None
                await process.stdout.readline()
            return await _streams(engine, [process.pid for process in processes], port, streams, steps, period_s, body)
        finally:
            processes[0].terminate()  # the others end with it
            for process in processes:
                await process.wait()
            await engine.close()
            listening.close()


async def _streams(
    engine: Engine, pids: list[int], port: int, streams: int, steps: int, period_s: float, body: dict[str, Any]
) -> Figures:
    loop = asyncio.get_running_loop()
    request = http_request("/v1/chat/completions", {**body, "max_tokens": steps, "stream": True})
    readers = [(await loop.create_connection(lambda: Reader(request), "127.0.0.1", port))[1] for _ in range(streams)]
    while engine.requests < streams:  # noqa: ASYNC110 (set-up only)
        await asyncio.sleep(0.05)
    engine.start_all()
    await asyncio.sleep(1.0)
    before = [cpu_time(pid) for pid in pids]
    sizes = sum(reader.received for reader in readers)
    started = time.perf_counter()
    await engine.run(steps, period_s)
    await asyncio.wait([reader.done for reader in readers])
    seconds = time.perf_counter() - started
    after = [cpu_time(pid) for pid in pids]
    spent = [sum(end) - sum(start) for start, end in zip(before, after, strict=True)]
    kernel = sum(end.kernel - start.kernel for start, end in zip(before, after, strict=True))
    tokens = streams * steps
    received = sum(reader.received for reader in readers) - sizes
    figures = Figures(
        len(pids),
        streams,
        steps,
        tokens,
        sum(spent) / tokens * 1e6,
        max(spent) / tokens * 1e6,
        kernel / tokens * 1e6,
        received / tokens,
        seconds,
        sum(map(rss_mb, pids)),
    )
    for reader in readers:
        if reader.transport is not None:
            reader.transport.close()
    return figures


async def _serve(options: ServerOptions, listen_fd: int) -> int:
    """Prints a line when it is ready."""
    from tsd.api.serve import Hooks, run

    listener = socket.socket(fileno=listen_fd)
    listener.setblocking(False)
    hooks = Hooks(on_ready=lambda: print("ready", flush=True))
    return await run(options, [EngineEndpoint(0, f"{options.runtime_dir}/engine.sock")], listener, hooks)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tsd bench front", description="CPU cost of the front per streamed token.")
    parser.add_argument("--streams", type=int, default=256, help="concurrent streams (default 256)")
    parser.add_argument("--steps", type=int, default=1000, help="tokens a stream (default 1000)")
    parser.add_argument("--period-ms", type=float, default=8.0, help="time between engine steps (default 8)")
    parser.add_argument("--api-workers", type=int, default=1, help="front processes (default 1)")
    parser.add_argument("--serve", default="", help=argparse.SUPPRESS)
    parser.add_argument("--listen-fd", type=int, default=-1, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.serve:
        return uvloop.run(_serve(msgspec.json.decode(options.serve, type=ServerOptions), options.listen_fd))
    body = {"messages": [{"role": "user", "content": "1 2 3"}]}
    period_s = options.period_ms / 1e3
    figures = uvloop.run(measure(options.api_workers, options.streams, options.steps, period_s, body))
    for name, value in figures._asdict().items():
        print(f"{name:<26} {value:,.2f}" if isinstance(value, float) else f"{name:<26} {value:,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
