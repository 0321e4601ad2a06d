"""The engine process: `python -m tsd.engine.worker SOCKET`, with its configuration as one JSON line on standard input.

Listens on the socket before anything is loaded, so that a front sees every phase of the start. Owns the process's
life: loading in a thread, the step loop, commands, heartbeats, and one way out for each fault.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import time
from typing import Any

import msgspec
import uvloop

from tsd.engine import life, precompile, transport
from tsd.engine.config import EngineConfig
from tsd.engine.errors import StartError
from tsd.engine.precompile import Precompile
from tsd.engine.protocol import (
    Abort,
    Command,
    Fatal,
    Heartbeat,
    Progress,
    Ready,
    Reply,
    Submit,
    ToEngine,
    Vocabulary,
)
from tsd.engine.transport import Channel

log = logging.getLogger("tsd.engine")
HEARTBEAT_S = 0.5


class Worker:
    """One engine's process. `run` returns the exit code."""

    def __init__(self, config: EngineConfig, socket_path: str, compiling: Precompile | None = None) -> None:
        self.config = config
        self._compiling = compiling
        self.socket_path = socket_path
        self.started_at = time.monotonic()
        self._history: list[Progress | Ready] = []
        self._channels: list[Channel[ToEngine]] = []
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._engine: Any = None
        self._loop = asyncio.get_running_loop()

    async def run(self) -> int:
        life.watch_life_line(sys.stdin.fileno(), lambda: self._end(0))
        # A service manager signals every process of a group; streams drain, so the engine ends when its front does.
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, lambda: None)
        server = await transport.listen(self.socket_path, self._message, self._closed, self._opened)
        loading = asyncio.create_task(self._load())
        beating = asyncio.create_task(self._beat())
        try:
            return await self._ended
        finally:
            loading.cancel()
            beating.cancel()
            server.close()
            if self._engine is not None:
                self._engine.close()
            # What was sent last (a Fatal) must reach the fronts before the process ends.
            for channel in self._channels:
                channel.close()
            await asyncio.sleep(0.05)

    def report(self, phase: str, detail: str, fraction: float | None = None) -> None:
        """Progress of the start; may be called from the loading thread."""
        message = Progress(phase, detail, time.monotonic() - self.started_at, fraction)
        self._loop.call_soon_threadsafe(self._broadcast, message)

    async def _load(self) -> None:
        # Imported here, in the thread, because torch takes seconds and the socket must answer meanwhile.
        def build() -> Any:
            from tsd.engine.build import build_engine

            return build_engine(self.config, self.report, self._compiling)

        try:
            parts = await asyncio.to_thread(build)
            from tsd.engine.engine import Engine

            self._engine = Engine(parts, self.fault)
            for channel in self._channels:
                self._engine.requests.open(channel)
            self._broadcast(self._engine.ready(time.monotonic() - self.started_at))
            freeze_garbage()
        except StartError as error:
            self._die(str(error), 3)
        except Exception as error:
            log.exception("the engine could not start")
            self._die(f"the engine could not start: {type(error).__name__}: {error}", 1)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            engine = self._engine
            beat = Heartbeat(0, 0, 0, 0) if engine is None else engine.heartbeat()
            for channel in self._channels:
                channel.send(beat)

    def _broadcast(self, message: Progress | Ready) -> None:
        last = self._history[-1] if self._history else None
        if isinstance(last, Progress) and isinstance(message, Progress) and not last.detail:
            # A front that comes late needs to know how far a phase is, not each of its hundredths.
            self._history.pop()
        self._history.append(message)
        for channel in self._channels:
            channel.send(message)

    def _opened(self, channel: Channel[ToEngine]) -> None:
        self._channels.append(channel)
        for message in self._history:
            channel.send(message)
        if self._engine is not None:
            self._engine.requests.open(channel)

    def _closed(self, channel: Channel[ToEngine], error: Exception | None) -> None:
        if error is not None:
            log.warning("a front's connection broke: %s", error)
        if channel in self._channels:
            self._channels.remove(channel)
        if self._engine is not None:
            self._engine.front_closed(channel)

    def _message(self, channel: Channel[ToEngine], message: ToEngine) -> None:
        engine = self._engine
        if engine is None:
            if isinstance(message, Command):
                channel.send(Reply(message.serial, False, b"the engine is still loading"))
            return
        match message:
            case Submit():
                engine.submit(channel, message)
            case Abort():
                engine.abort(channel, message)
            case Vocabulary():
                engine.learn_vocabulary(message)
            case Command():
                channel.send(engine.command(message))

    def fault(self, error: BaseException) -> None:
        """The step loop broke: every front is told, then the process ends."""
        log.error("the engine failed", exc_info=error)
        self._die(f"the engine failed: {type(error).__name__}: {error}", 1)

    def _die(self, message: str, code: int) -> None:
        for channel in self._channels:
            channel.send(Fatal(message, code))
        if not self._channels:
            print(f"tsd: engine {self.config.engine}: {message}", file=sys.stderr)
        self._end(code)

    def _end(self, code: int) -> None:
        if not self._ended.done():
            self._ended.set_result(code)


def freeze_garbage() -> None:
    """The loop makes no cycles worth a pause: what lives now is left out of collection, and it runs by hand."""
    gc.collect()
    gc.freeze()
    gc.disable()


async def _run(config: EngineConfig, socket_path: str, compiling: Precompile | None) -> int:
    return await Worker(config, socket_path, compiling).run()


def main() -> int:
    # The parent is whoever wrote the configuration; it is named there because it may be gone by now.
    line = sys.stdin.buffer.readline()
    if not line:
        return 1
    order = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    life.die_with_parent(msgspec.json.decode(order["parent"], type=int))
    config = msgspec.json.decode(order["config"], type=EngineConfig)
    logging.basicConfig(
        level=config.log_level.upper(), format=f"%(asctime)s engine {config.engine} %(levelname)s %(message)s"
    )
    # Idle OpenMP threads spin and starve the loop on a small machine; our kernels bring their own threads.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # What is made while loading lives on; looking through it again and again takes a third of the time of imports.
    gc.disable()
    # First of all: it takes longer than anything else in a start.
    compiling = precompile.start(config)
    return uvloop.run(_run(config, sys.argv[1], compiling))


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of the executor may sit in a kernel; the process ends without waiting for them.
    os._exit(code)
