"""Starts a server's other processes and watches them. Knows nothing about HTTP or about what they compute.

Each runs in a session of its own, so that a terminal's Ctrl-C reaches only the first process, which then stops the
others in order; `life.py` makes sure that none outlives it however it ends.
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
from typing import Any

import msgspec

from tsd.engine.config import EngineConfig


@dataclass(frozen=True)
class ChildExit:
    name: str
    """`engine 0`, `front 1`."""
    code: int

    def __str__(self) -> str:
        how = f"signal {signal.Signals(-self.code).name}" if self.code < 0 else f"exit code {self.code}"
        return f"{self.name} ended with {how}"


class ChildProcess:
    """`python -m MODULE ARGUMENTS`, with `order` and this process's id as one JSON line on standard input.

    Standard input stays open: it is the child's life line, and closing it tells the child to end.
    """

    def __init__(self, name: str, module: str, arguments: Sequence[str], order: dict[str, Any]) -> None:
        self.name = name
        self._command = ("-m", module, *arguments)
        self._order = order
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self, inherit: Sequence[int] = ()) -> None:
        """`inherit`: descriptors that the child gets, under the same numbers."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            start_new_session=True,
            pass_fds=tuple(inherit),
            env={**os.environ, "PYTHONSAFEPATH": "1"},
        )
        order = {"parent": os.getpid(), **self._order}
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(order) + b"\n")
        await self._process.stdin.drain()

    async def wait(self) -> ChildExit:
        assert self._process is not None
        return ChildExit(self.name, await self._process.wait())

    async def stop(self, timeout: float) -> None:
        """Cuts the life line, and kills a child that has not ended within `timeout` seconds."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), timeout)
        except TimeoutError:
            self.kill()
            await process.wait()

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()


class EngineProcess(ChildProcess):
    """One engine process and the socket it listens on."""

    def __init__(self, config: EngineConfig, socket_path: str) -> None:
        super().__init__(f"engine {config.engine}", "tsd.engine.worker", [socket_path], {"config": config})
        self.config = config
        self.socket_path = socket_path


class Supervisor:
    """The engines of one server, in a private runtime folder, and what else is adopted. An async context manager."""

    def __init__(self, configs: Sequence[EngineConfig]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tsd-"))
        self.engines = [EngineProcess(config, str(self.folder / f"engine{config.engine}")) for config in configs]
        self._others: list[ChildProcess] = []

    async def __aenter__(self) -> Supervisor:
        for engine in self.engines:
            await engine.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop(5.0)
        shutil.rmtree(self.folder, ignore_errors=True)

    async def adopt(self, child: ChildProcess, inherit: Sequence[int] = ()) -> None:
        """Starts another process, which then lives as long as the engines do."""
        self._others.append(child)
        await child.start(inherit)

    @property
    def children(self) -> list[ChildProcess]:
        return [*self._others, *self.engines]

    async def stop(self, timeout: float) -> None:
        """What asks the engines ends before they do."""
        for group in (self._others, self.engines):
            await asyncio.gather(*(child.stop(timeout) for child in group))

    def kill(self) -> None:
        for child in self.children:
            child.kill()
