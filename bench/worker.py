"""A client process: receives its job on stdin, runs the load, sends samples on stdout."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
from collections.abc import AsyncIterator
from time import perf_counter

import uvloop

from tsd.bench.link import Bye, Go, Job, Ready, Sample, Stop, Tick, encode, receive
from tsd.bench.load import Departure, Load

_TICK_S = 0.25
_MOST_OPENED = 1024


class _Output(asyncio.Protocol):
    """Our end of stdout; `closed` is set when all was written or the coordinator is gone."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()


async def _stdio() -> tuple[asyncio.StreamReader, asyncio.WriteTransport, asyncio.Event]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(0, "rb"))
    transport, output = await loop.connect_write_pipe(_Output, os.fdopen(1, "wb"))
    return reader, transport, output.closed


async def _from_cursor(job: Job) -> AsyncIterator[Departure]:
    """Session indices, each read once by whichever worker comes first: the file's offset is shared."""
    assert job.cursor_fd is not None
    while len(raw := os.read(job.cursor_fd, 4)) == 4:
        index = int.from_bytes(raw, "little")
        yield Departure(index, job.plan.sessions[index], None)


async def _run(job: Job, load: Load, start: float) -> None:
    await asyncio.sleep(max(0.0, start - perf_counter()))
    if job.cursor_fd is not None:
        async with asyncio.TaskGroup() as group:
            for _ in range(job.slots or 1):
                group.create_task(load.run_slot(_from_cursor(job)))
    else:
        sessions = job.plan.sessions
        await load.run_open([Departure(i, sessions[i], start + offset) for i, offset in job.departures], job.slots)


async def _tick(load: Load, out: asyncio.WriteTransport) -> None:
    while True:
        await asyncio.sleep(_TICK_S)
        out.write(encode(Tick(load.worker, load.in_flight, load.chunks)))


async def _wait_for_stop(reader: asyncio.StreamReader) -> None:
    """Returns on Stop, and when the coordinator is gone."""
    message = await receive(reader)
    assert message is None or isinstance(message, Stop)


async def _main() -> None:
    reader, out, closed = await _stdio()
    job = await receive(reader)
    if job is None:
        return
    assert isinstance(job, Job)
    load = Load(job.plan, job.shape, job.worker, job.seed, lambda record: out.write(encode(Sample(record))))
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 50, 50)  # a collection in the middle of a run would show up as latency of the server
    await load.pool.open(min(job.slots or 0, len(job.plan.sessions), _MOST_OPENED))
    out.write(encode(Ready()))
    go = await receive(reader)
    if not isinstance(go, Go):
        return
    ticker = asyncio.create_task(_tick(load, out))
    lag = asyncio.create_task(load.watch_lag())
    stop = asyncio.create_task(_wait_for_stop(reader))
    work = asyncio.create_task(_run(job, load, go.at))
    await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
    for task in (lag, ticker, stop):
        task.cancel()
    if not work.done():
        work.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await work
    load.pool.close()
    out.write(encode(Bye(job.worker, load.max_lag_s * 1e3, load.lags_over_5ms, load.server_gone)))
    out.close()
    await closed.wait()


def main() -> int:
    uvloop.run(_main())
    return 0


if __name__ == "__main__":
    sys.exit(main())
