"""Drives a launched job to its HTTP answer, whole or as a stream. Knows no dialect: they pass what to write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web

from tsd.api.errors import ApiError
from tsd.api.front import Front
from tsd.api.job import Job
from tsd.api.streaming import EventStream

START_WAIT_S = 0.5
"""How long a stream's headers wait for the engine to take the request: a refusal in that time gets its status."""

_encoder = msgspec.json.Encoder()


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=_encoder.encode(value), status=status, content_type="application/json", headers=headers)


async def wait_for(front: Front, job: Job) -> None:
    """Returns when every sequence has ended. Raises the job's error. A disconnect cancels this and aborts the job."""
    try:
        await asyncio.wait([job.done])  # awaiting the future itself would let a cancellation cancel it
    finally:
        front.release(job)
    if job.error is not None:
        raise job.error


def new_stream(front: Front, job: Job) -> EventStream:
    def overflow() -> None:
        job.abort()
        if not job.done.done():
            job.done.set_result(None)

    return EventStream(front.outbox, front.options.limits.stream_buffer_bytes, overflow)


async def stream_job(
    front: Front,
    request: web.Request,
    job: Job,
    events: EventStream,
    *,
    first: Callable[[], bytes] | None = None,
    last: Callable[[], bytes],
    failure: Callable[[ApiError], bytes],
) -> web.StreamResponse:
    """Headers go out when the engine has taken the request, before what `first` gives. `last` ends a good stream,
    `failure` a broken one."""
    front.metrics.streams_open += 1
    try:
        await asyncio.wait([job.started], timeout=START_WAIT_S)
        if job.error is not None:
            raise job.error
        if first is not None:
            events.put_first(first())
        await events.open(request, {"X-Request-Id": job.public_id})
        while not job.done.done():
            sent = events.sent
            await asyncio.wait([job.done], timeout=front.options.ping_s)
            if events.sent == sent and not job.done.done():
                events.ping()
        end = last() if job.error is None else failure(job.error)  # `last` may send something itself
        events.send(end)
        return await events.close()
    finally:
        front.metrics.streams_open -= 1
        front.release(job)
