"""Runs a plan with several client processes and gathers their samples.

Owns the workers' life: start, common start time, stop, and what is reported when one dies. The processes share one
cursor over the sessions (closed loop), so that a free slot anywhere takes the next session, or split the departures
(open loop). Knows nothing about metrics.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from tsd.bench.errors import WorkerDied
from tsd.bench.link import Bye, Go, Job, Ready, Sample, Stop, Tick, encode, receive
from tsd.bench.plan import Plan, RequestShape
from tsd.bench.record import RequestRecord

_READY_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 10.0
_HEAD_START_S = 0.05


@dataclass(frozen=True)
class Pace:
    """Closed loop: `slots` sessions at a time. Open loop: `offsets[i]` is when session i leaves, `slots` a cap."""

    slots: int | None
    offsets: list[float] | None = None

    @property
    def is_open(self) -> bool:
        return self.offsets is not None


@dataclass
class LiveCounts:
    """What the workers last told about themselves."""

    in_flight: dict[int, int] = field(default_factory=dict)
    chunks: dict[int, int] = field(default_factory=dict)


@dataclass
class RunOutcome:
    """All samples of a run, whole or cut short."""

    records: list[RequestRecord] = field(default_factory=list)
    started: float = 0.0
    workers: int = 1
    max_lag_ms: float = 0.0
    lags_over_5ms: int = 0
    stopped: str = ""


def default_workers(concurrency: int, cpus: int | None = None) -> int:
    """One process up to 63 streams; above, about one per 32 streams, leaving the server half of the processors."""
    if concurrency < 64:
        return 1
    return max(1, min(concurrency // 32, (cpus or os.cpu_count() or 1) // 2, 16))


def _share(total: int, parts: int, part: int) -> int:
    return total // parts + (part < total % parts)


async def _end(process: asyncio.subprocess.Process) -> None:
    """A worker ends when its stdin closes; one that does not is killed."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(_STOP_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


class Coordinator:
    """One run. `stop()` ends it early; `on_record` and `live` serve a progress view."""

    def __init__(
        self,
        plan: Plan,
        shape: RequestShape,
        pace: Pace,
        workers: int,
        seed: int,
        on_record: Callable[[RequestRecord], None] | None = None,
    ) -> None:
        slots = pace.slots if not pace.is_open else None
        self.workers = max(1, min(workers, slots or workers, len(plan.sessions)))
        self.plan, self.shape, self.pace, self.seed = plan, shape, pace, seed
        self.live = LiveCounts()
        self.outcome = RunOutcome(workers=self.workers)
        self._on_record = on_record
        self._stop = asyncio.Event()

    def stop(self, why: str) -> None:
        """Cut the run: what is in flight is recorded as stopped, what was not sent as not sent."""
        self.outcome.stopped = self.outcome.stopped or why
        self._stop.set()

    async def run(self) -> RunOutcome:
        """Raises WorkerDied when a client process ends before it said so."""
        with tempfile.TemporaryFile() as cursor:
            cursor.write(b"".join(i.to_bytes(4, "little") for i in range(len(self.plan.sessions))))
            cursor.flush()
            os.lseek(cursor.fileno(), 0, os.SEEK_SET)
            processes: list[asyncio.subprocess.Process] = []
            try:
                for _ in range(self.workers):
                    processes.append(await self._spawn(cursor.fileno()))
                await asyncio.gather(*(self._prepare(p, i, cursor.fileno()) for i, p in enumerate(processes)))
                self.outcome.started = perf_counter() + _HEAD_START_S
                for process in processes:
                    self._send(process, Go(self.outcome.started))
                await self._gather(processes)
            finally:
                await asyncio.gather(*(_end(process) for process in processes))
        self._account_for_unsent()
        return self.outcome

    async def _spawn(self, cursor_fd: int) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tsd.bench.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            pass_fds=(cursor_fd,),
            start_new_session=True,  # Ctrl-C reaches us alone; we then ask the workers to stop
            limit=1 << 20,
        )

    def _send(self, process: asyncio.subprocess.Process, message: Job | Go | Stop) -> None:
        assert process.stdin is not None
        if not process.stdin.is_closing():
            process.stdin.write(encode(message))

    async def _prepare(self, process: asyncio.subprocess.Process, worker: int, cursor_fd: int) -> None:
        slots = self.pace.slots
        job = Job(self.plan, self.shape, worker, self.seed, _share(slots, self.workers, worker) if slots else None)
        if self.pace.offsets is None:
            job.cursor_fd = cursor_fd
        else:
            order = sorted(range(len(self.plan.sessions)), key=self.pace.offsets.__getitem__)
            job.departures = [(i, self.pace.offsets[i]) for i in order[worker :: self.workers]]
            if slots:
                job.slots = max(1, job.slots or 1)
        self._send(process, job)
        assert process.stdin is not None and process.stdout is not None
        try:
            async with asyncio.timeout(_READY_TIMEOUT_S):
                await process.stdin.drain()
                answer = await receive(process.stdout)
        except (TimeoutError, ConnectionError):
            answer = None
        if not isinstance(answer, Ready):
            raise WorkerDied(f"client process {worker} did not start (exit status {process.returncode})")

    async def _gather(self, processes: list[asyncio.subprocess.Process]) -> None:
        readers = [asyncio.create_task(self._read(process, i)) for i, process in enumerate(processes)]
        stopper = asyncio.create_task(self._stop.wait())
        try:
            pending: set[asyncio.Task[None]] = set(readers)
            while pending and not stopper.done():
                waiting: set[asyncio.Task[Any]] = {*pending, stopper}
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in pending if task.done()]:
                    pending.discard(task)
                    task.result()
            if pending:
                for process in processes:
                    self._send(process, Stop())
                await asyncio.wait(pending, timeout=_STOP_TIMEOUT_S)
        finally:
            for helper in (*readers, stopper):
                helper.cancel()

    async def _read(self, process: asyncio.subprocess.Process, worker: int) -> None:
        assert process.stdout is not None
        outcome = self.outcome
        while True:
            message = await receive(process.stdout)
            if isinstance(message, Sample):
                outcome.records.append(message.record)
                if self._on_record is not None:
                    self._on_record(message.record)
            elif isinstance(message, Tick):
                self.live.in_flight[message.worker] = message.in_flight
                self.live.chunks[message.worker] = message.chunks
            elif isinstance(message, Bye):
                outcome.max_lag_ms = max(outcome.max_lag_ms, message.max_lag_ms)
                outcome.lags_over_5ms += message.lags_over_5ms
                if message.server_gone:
                    self.stop(message.server_gone)
                self.live.in_flight[worker] = 0
                return
            else:
                self.stop(f"client process {worker} died")
                return

    def _account_for_unsent(self) -> None:
        """Every request of the plan ends as one record, also those that were never sent."""
        seen = {(record.session, record.turn) for record in self.outcome.records}
        why = self.outcome.stopped or "its client process died"
        for index, session in enumerate(self.plan.sessions):
            for number, turn in enumerate(session.turns):
                if (index, number) not in seen:
                    record = RequestRecord(session=index, turn=number, requested_output=turn.max_tokens)
                    record.error = f"not sent: {why}"
                    self.outcome.records.append(record)
        self.outcome.records.sort(key=lambda record: (record.session, record.turn))
