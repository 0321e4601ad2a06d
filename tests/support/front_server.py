"""Runs a whole front over fake engines in the test's own loop, on a free loopback port."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import uvloop
from support.fake_engine import FakeEngine

from tsd.api.options import EngineEndpoint, ServerOptions
from tsd.api.serve import Hooks, run

MODEL_CONFIG = {"vocab_size": 1100, "eos_token_id": 2}


class Server:
    """`session` talks to it; `stop` ends it as a signal would and gives its exit code."""

    def __init__(self, engines: list[FakeEngine], url: str, hooks: Hooks, task: asyncio.Task[int]) -> None:
        self.engines = engines
        self.engine = engines[0]
        self.url = url
        self.port = int(url.rsplit(":", 1)[1])
        self.hooks = hooks
        self.task = task
        self.session = aiohttp.ClientSession(base_url=url)

    async def stop(self) -> int:
        assert self.hooks.stop is not None
        self.hooks.stop.set()
        return await self.task

    async def post(self, path: str, body: Any = None, **options: Any) -> tuple[int, Any]:
        data = body if isinstance(body, (bytes, str)) else json.dumps(body if body is not None else {})
        async with self.session.post(path, data=data, **options) as response:
            text = await response.text()
            return response.status, json.loads(text) if text else None

    async def get(self, path: str, **options: Any) -> tuple[int, Any]:
        async with self.session.get(path, **options) as response:
            text = await response.text()
            return response.status, json.loads(text) if response.content_type == "application/json" else text

    async def events(self, path: str, body: Any, **options: Any) -> list[Any]:
        """The data of each event; `[DONE]` as that string."""
        async with self.session.post(path, json=body, **options) as response:
            assert response.status == 200, await response.text()
            found = []
            async for line in response.content:
                if line.startswith(b"data: "):
                    data = line[6:].strip().decode()
                    found.append(data if data == "[DONE]" else json.loads(data))
            return found


@contextlib.asynccontextmanager
async def serving(
    engines: int = 1,
    model: str | None = None,
    options: dict[str, Any] | None = None,
    wait: bool = True,
    send_buffer: int = 0,
    **engine: Any,
) -> AsyncIterator[Server]:
    with tempfile.TemporaryDirectory(prefix="tsd") as folder:
        if model is None:
            (Path(folder) / "config.json").write_text(json.dumps(MODEL_CONFIG))
            model = folder
        fakes = [FakeEngine(f"{folder}/{index}.sock", **engine) for index in range(engines)]
        for fake in fakes:
            await fake.start()
        listener = socket.create_server(("127.0.0.1", 0))
        if send_buffer:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        port = listener.getsockname()[1]
        defaults: dict[str, Any] = {
            "served_names": ("test",),
            "handle_signals": False,
            "freeze_gc": False,
            "grammars_after_s": None,
            "request_log": "",
        }
        config = ServerOptions(model=model, port=port, **{**defaults, **(options or {})})
        hooks = Hooks(stop=asyncio.Event())
        ready = asyncio.Event()
        hooks.on_ready = ready.set
        endpoints = [EngineEndpoint(index, fake.path) for index, fake in enumerate(fakes)]
        task = asyncio.create_task(run(config, endpoints, listener, hooks))
        server = Server(fakes, f"http://127.0.0.1:{port}", hooks, task)
        try:
            if wait:
                async with asyncio.timeout(20):
                    await ready.wait()
            yield server
        finally:
            await server.session.close()
            if not task.done():
                await server.stop()
            else:
                task.result()
            for fake in fakes:
                await fake.stop()


@contextlib.asynccontextmanager
async def front_group(
    count: int, engines: int = 1, options: dict[str, Any] | None = None, **engine: Any
) -> AsyncIterator[list[Server]]:
    """Several fronts of one server in one loop, each on a port of its own so that a test can choose."""
    with tempfile.TemporaryDirectory(prefix="tsd") as folder:
        (Path(folder) / "config.json").write_text(json.dumps(MODEL_CONFIG))
        engine = {"max_model_len": 4096, **engine}
        fakes = [FakeEngine(f"{folder}/engine{index}", **engine) for index in range(engines)]
        for fake in fakes:
            await fake.start()
        endpoints = [EngineEndpoint(index, fake.path) for index, fake in enumerate(fakes)]
        servers, ready = [], []
        for number in range(count):
            listener = socket.create_server(("127.0.0.1", 0))
            port = listener.getsockname()[1]
            config = ServerOptions(
                model=folder,
                port=port,
                served_names=("test",),
                handle_signals=False,
                freeze_gc=False,
                request_log="",
                grammars_after_s=None,
                front=number,
                fronts=count,
                runtime_dir=folder,
                routing_secret="shared",
                **(options or {}),
            )
            hooks = Hooks(stop=asyncio.Event())
            ready.append(asyncio.Event())
            hooks.on_ready = ready[-1].set
            task = asyncio.create_task(run(config, endpoints, listener, hooks))
            servers.append(Server(fakes, f"http://127.0.0.1:{port}", hooks, task))
        try:
            async with asyncio.timeout(20):
                for event in ready:
                    await event.wait()
            yield servers
        finally:
            for server in servers:
                await server.session.close()
            codes = await asyncio.gather(servers[0].stop(), *(server.task for server in servers[1:]))
            for fake in fakes:
                await fake.stop()
        assert codes == [0] * count


async def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Waits until `condition` holds; raises TimeoutError when it never does."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 (what is watched has no event)
            await asyncio.sleep(0.002)


def run_async(test: Callable[[], Awaitable[None]], seconds: float = 60, debug: bool = False) -> None:
    """Runs under uvloop, and with `debug` also under asyncio's own loop with its checks on."""

    async def main() -> None:
        async with asyncio.timeout(seconds):
            await test()

    uvloop.run(main())
    if debug:
        asyncio.run(main(), debug=True)


def limits(**values: Any) -> Any:
    from tsd.api.limits import Limits

    return msgspec.structs.replace(Limits(), **values)
