"""Messages between the coordinator and its client workers.

msgpack frames with a length in front, over the worker's stdin and stdout.
"""

from __future__ import annotations

import asyncio

import msgspec

from tsd.bench.plan import Plan, RequestShape
from tsd.bench.record import RequestRecord

_MAX_FRAME = 1 << 31


class Job(msgspec.Struct, tag=True):
    """Everything a worker needs. Closed loop: `cursor_fd` is a shared file of session indices, `slots` its own slots.
    Open loop: `departures` are (session index, seconds after the start)."""

    plan: Plan
    shape: RequestShape
    worker: int
    seed: int
    slots: int | None
    cursor_fd: int | None = None
    departures: list[tuple[int, float]] = []


class Ready(msgspec.Struct, tag=True):
    """The worker has decoded its job."""


class Go(msgspec.Struct, tag=True):
    """Start at this `perf_counter` time."""

    at: float


class Stop(msgspec.Struct, tag=True):
    """Cut what is in flight, keep what arrived, and end."""


class Sample(msgspec.Struct, tag=True):
    """A record that just ended."""

    record: RequestRecord


class Tick(msgspec.Struct, tag=True):
    """Counts for the progress view."""

    worker: int
    in_flight: int
    chunks: int


class Bye(msgspec.Struct, tag=True):
    """The worker is done. `server_gone`: why it gave up early, or empty."""

    worker: int
    max_lag_ms: float
    lags_over_5ms: int
    server_gone: str = ""


Message = Job | Ready | Go | Stop | Sample | Tick | Bye

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    payload = _ENCODER.encode(message)
    assert len(payload) < _MAX_FRAME
    return len(payload).to_bytes(4, "big") + payload


async def receive(reader: asyncio.StreamReader) -> Message | None:
    """The next message; None when the other side has closed."""
    try:
        size = int.from_bytes(await reader.readexactly(4), "big")
        return _DECODER.decode(await reader.readexactly(size))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
