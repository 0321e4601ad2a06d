"""What is asked of, or told to, the whole server, be it one front or several. Routes come here and count no fronts.

`acts` is the other end: what a member does when the lead asks.
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from tsd.api.figures import FrontFigures, Sketch, add_up, percentiles
from tsd.api.front import Front
from tsd.api.fronts.lead import Lead
from tsd.api.fronts.member import Act
from tsd.api.job import Job
from tsd.api.metrics import WINDOW_S

_figures = msgspec.msgpack.Decoder(FrontFigures)
_sketches = msgspec.msgpack.Decoder(dict[str, Sketch])


def _lead(front: Front) -> Lead | None:
    return front.group if isinstance(front.group, Lead) else None


async def figures(front: Front) -> FrontFigures:
    """Summed over fronts."""
    lead = _lead(front)
    others = [] if lead is None else await lead.figures("figures")
    return add_up([front.figures(), *map(_figures.decode, others)])


async def latency(front: Front) -> dict[str, Any]:
    """Percentiles of the rolling windows, over every front's requests."""
    lead = _lead(front)
    others = [] if lead is None else await lead.figures("latency")
    sketches = [front.metrics.latency(), *map(_sketches.decode, others)]
    return {"window_s": WINDOW_S, **{name: percentiles([s[name] for s in sketches]) for name in sketches[0]}}


async def requests(front: Front) -> list[dict[str, Any]]:
    """Every client request in flight."""
    lead = _lead(front)
    others = [] if lead is None else await lead.ask_all("requests")
    return [row for rows in (_rows(front), *map(msgspec.json.decode, others)) for row in rows]


async def set_state(front: Front, state: str) -> None:
    """ready, paused or draining, on every front; returns when all know."""
    lead = _lead(front)
    if lead is not None:
        await lead.ask_all("state", state.encode())
    front.state = state


async def set_log_level(front: Front, level: str) -> None:
    lead = _lead(front)
    if lead is not None:
        await lead.ask_all("log_level", level.encode())
    logging.getLogger("tsd").setLevel(level.upper())


async def drain(front: Front) -> None:
    """Takes no new requests; returns when no front has one left. Fronts that have not come up are not waited for."""
    front.state = "draining"
    lead = _lead(front)
    if lead is not None:
        await lead.tell_all("state", b"draining")
        await lead.tell_all("idle", timeout_s=None)
    await front.idle.wait()


async def fail_all(front: Front, why: str) -> None:
    """Every open stream of every front that still answers ends with an error."""
    front.fail_all(why)
    lead = _lead(front)
    if lead is not None:
        await lead.tell_all("fail", why.encode(), timeout_s=1.0)


def acts(front: Front) -> dict[str, Act]:
    """What a member answers."""

    async def idle(_: bytes) -> bytes:
        await front.idle.wait()
        return b""

    async def state(name: bytes) -> bytes:
        front.state = name.decode()
        return b""

    async def log_level(level: bytes) -> bytes:
        logging.getLogger("tsd").setLevel(level.decode().upper())
        return b""

    async def fail(why: bytes) -> bytes:
        front.state = "failed"
        front.fail_all(why.decode())
        return b""

    async def own_figures(_: bytes) -> bytes:
        return msgspec.msgpack.encode(front.figures())

    async def own_latency(_: bytes) -> bytes:
        return msgspec.msgpack.encode(front.metrics.latency())

    async def own_requests(_: bytes) -> bytes:
        return msgspec.json.encode(_rows(front))

    return {
        "idle": idle,
        "state": state,
        "log_level": log_level,
        "fail": fail,
        "figures": own_figures,
        "latency": own_latency,
        "requests": own_requests,
    }


def _rows(front: Front) -> list[dict[str, Any]]:
    return [_row(job) for job in front.jobs.values()]


def _row(job: Job) -> dict[str, Any]:
    return {
        "id": job.public_id,
        "route": job.route,
        "prompt_tokens": job.prompt_tokens,
        "completion_tokens": job.completion_tokens,
        "open": job.open,
    }
