"""Starts the engine processes and watches them. Knows nothing about HTTP or about what engines compute.

Each engine runs in a session of its own, so that a terminal's Ctrl-C reaches only the front, which then stops the
engines in order; `life.py` makes sure that none outlives the front however it ends.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tsd.engine.config import EngineConfig


@dataclass(frozen=True)
class EngineExit:
    engine: int
    code: int

    def __str__(self) -> str:
        how = f"signal {signal.Signals(-self.code).name}" if self.code < 0 else f"exit code {self.code}"
        return f"engine {self.engine} ended with {how}"


class EngineProcess:
    """One engine process and the socket it listens on."""

    def __init__(self, config: EngineConfig, socket_path: str) -> None:
        self.config = config
        self.socket_path = socket_path
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tsd.engine.worker",
            self.socket_path,
            stdin=asyncio.subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "PYTHONSAFEPATH": "1"},
        )
        order = {"parent": os.getpid(), "config": self.config}
        assert self._process.stdin is not None
        # Standard input stays open: it is the engine's life line.
        self._process.stdin.write(msgspec.json.encode(order) + b"\n")
        await self._process.stdin.drain()

    async def wait(self) -> EngineExit:
        assert self._process is not None
        return EngineExit(self.config.engine, await self._process.wait())

    async def stop(self, timeout: float) -> None:
        """Asks the engine to end, and kills it when it has not within `timeout` seconds."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), timeout)
        except TimeoutError:
            self.kill()
            await process.wait()

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()


class Supervisor:
    """The engines of one server, in a private runtime folder. Use as an async context manager."""

    def __init__(self, configs: Sequence[EngineConfig]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="tsd-"))
        self.engines = [EngineProcess(config, str(self._folder / f"engine{config.engine}")) for config in configs]
        self._watching: list[asyncio.Task[EngineExit]] = []

    async def __aenter__(self) -> Supervisor:
        for engine in self.engines:
            await engine.start()
        self._watching = [asyncio.create_task(engine.wait()) for engine in self.engines]
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop(5.0)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def first_exit(self) -> EngineExit:
        """Returns when any engine ends, for whatever reason."""
        done, _ = await asyncio.wait(self._watching, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()

    async def stop(self, timeout: float) -> None:
        await asyncio.gather(*(engine.stop(timeout) for engine in self.engines))

    def kill(self) -> None:
        for engine in self.engines:
            engine.kill()
