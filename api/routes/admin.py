"""What operators ask and order. `auth` has already seen the admin key."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from aiohttp import web

from tsd.api.body import read_json
from tsd.api.engines import EngineClient
from tsd.api.errors import InvalidRequest, NotFound, Unavailable
from tsd.api.front import Front, front_of
from tsd.api.fronts import whole
from tsd.api.respond import json_response
from tsd.api.snapshots import MAX_INTERVAL_S, MIN_INTERVAL_S, Snapshots

SNAPSHOTS: web.AppKey[Snapshots] = web.AppKey("snapshots", Snapshots)
LEVELS = ("debug", "info", "warning", "error")


class LogLevel(msgspec.Struct):
    level: str


async def stream(request: web.Request) -> web.StreamResponse:
    """SSE of console snapshots, one each `interval` seconds."""
    snapshots = request.app[SNAPSHOTS]
    try:
        interval = float(request.query.get("interval", "1"))
    except ValueError as error:
        raise InvalidRequest("interval must be a number of seconds", param="interval") from error
    if not MIN_INTERVAL_S <= interval <= MAX_INTERVAL_S:
        raise InvalidRequest(f"interval must be from {MIN_INTERVAL_S} to {MAX_INTERVAL_S} seconds", param="interval")
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    watcher = snapshots.watch(interval)
    try:
        while front_of(request).state != "stopped":
            try:
                async with asyncio.timeout(5.0):
                    data = await watcher.newest.get()
            except TimeoutError:
                await response.write(b": ping\n\n")
                continue
            await response.write(b"data: " + data + b"\n\n")
        return response
    finally:
        snapshots.unwatch(watcher)


async def kernels(request: web.Request) -> web.StreamResponse:
    return json_response({"engines": await _ask_all(front_of(request), "kernels")})


async def requests(request: web.Request) -> web.StreamResponse:
    """With `id` one request's timeline; without, every request in flight."""
    front = front_of(request)
    name = request.query.get("id")
    if not name:
        return json_response({"requests": await whole.requests(front)})
    for engine in front.fleet.engines:
        try:
            return web.Response(body=await engine.command("requests", name), content_type="application/json")
        except InvalidRequest:
            continue  # it does not know the request
    raise NotFound("no such request is known", param="id", code="request_not_found")


async def pages(request: web.Request) -> web.StreamResponse:
    """Owner and key of the pages of a bin of one engine's page map."""
    front = front_of(request)
    number = request.query.get("engine", "0")
    engine = next((e for e in front.fleet.engines if str(e.engine) == number), None)
    if engine is None:
        raise NotFound("no such engine", param="engine")
    index = request.query.get("bin", "")
    if not (index.isascii() and index.isdecimal() and len(index) < 10):
        raise InvalidRequest("bin must be a number", param="bin")
    return web.Response(body=await engine.command("pages", index), content_type="application/json")


async def flush_cache(request: web.Request) -> web.StreamResponse:
    """`?disk=true`: the blocks on disk too, which other processes may be using."""
    disk = request.query.get("disk", "false")
    if disk not in ("true", "false"):
        raise InvalidRequest("disk must be true or false", param="disk")
    argument = "disk" if disk == "true" else ""
    return json_response({"flushed": True, "engines": await _ask_all(front_of(request), "flush_cache", argument)})


async def pause(request: web.Request) -> web.StreamResponse:
    """Running requests stand still, new ones get 503, until `/resume`."""
    front = front_of(request)
    if front.state not in ("ready", "paused"):
        raise Unavailable(f"the server is {front.state}")
    await whole.set_state(front, "paused")
    return json_response({"state": front.state, "engines": await _ask_all(front, "pause")})


async def resume(request: web.Request) -> web.StreamResponse:
    """Takes requests again, after a pause or a drain."""
    front = front_of(request)
    if front.state not in ("ready", "paused", "draining"):
        raise Unavailable(f"the server is {front.state}")
    found = await _ask_all(front, "resume")
    await whole.set_state(front, "ready")
    return json_response({"state": front.state, "engines": found})


async def drain(request: web.Request) -> web.StreamResponse:
    """New requests get 503; those in flight run to their end."""
    front = front_of(request)
    if front.state in ("ready", "paused"):
        await whole.set_state(front, "draining")
    return json_response({"state": front.state, "in_flight": (await whole.figures(front)).jobs})


async def log_level(request: web.Request) -> web.StreamResponse:
    front = front_of(request)
    level = (await read_json(request, LogLevel, front.options.limits)).level.lower()
    if level not in LEVELS:
        raise InvalidRequest(f"level must be one of {', '.join(LEVELS)}", param="level")
    await whole.set_log_level(front, level)
    return json_response({"level": level, "engines": await _ask_all(front, "log_level", level)})


async def _ask_all(front: Front, name: str, argument: str = "") -> list[Any]:
    async def ask(engine: EngineClient) -> Any:
        payload = await engine.command(name, argument)
        try:
            return msgspec.json.decode(payload) if payload else None
        except msgspec.DecodeError:
            return payload.decode("utf-8", "replace")

    return list(await asyncio.gather(*(ask(engine) for engine in front.fleet.engines)))
