"""Reads a request's JSON body into a wire type: size, then depth, then types. Big ones off the loop."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterator
from typing import TypeVar

import msgspec
from aiohttp import web

from tsd.api.errors import BodyTimeout, InvalidRequest, Overloaded, TooLarge
from tsd.api.limits import Limits, check_body_size, check_json_depth

T = TypeVar("T")


class BodyBudget:
    """Memory that bodies may take together."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.held = 0

    @contextlib.contextmanager
    def hold(self, size: int) -> Iterator[None]:
        """Raises Overloaded when there is no room (one body always fits)."""
        if self.held and self.held + size > self._most:
            raise Overloaded("too many large requests at one time; try again later", code="busy", retry_after=1)
        self.held += size
        try:
            yield
        finally:
            self.held -= size


BODIES: web.AppKey[BodyBudget] = web.AppKey("bodies", BodyBudget)
_OFF_LOOP = 128 * 1024
_AT = re.compile(r"^(.*?)(?: - at `(?:key in )?\$\.?(.*)`)?$", re.DOTALL)


async def read_body(request: web.Request, limits: Limits) -> bytes:
    """Raises TooLarge, without reading on, once the body is over the limit."""
    try:
        async with asyncio.timeout(limits.body_seconds):
            return await request.read()
    except TimeoutError as error:
        raise BodyTimeout(f"the body did not arrive in {limits.body_seconds:g} seconds") from error
    except web.HTTPRequestEntityTooLarge as error:
        raise TooLarge(f"the body is over the limit of {limits.body_bytes} bytes") from error


@contextlib.asynccontextmanager
async def held_body(request: web.Request, limits: Limits) -> AsyncIterator[bytes]:
    """The body, counted in what bodies may take together for as long as it is worked on."""
    size = request.content_length
    check_body_size(size, limits)
    grows = request.body_exists and (size is None or "Content-Encoding" in request.headers)
    with request.app[BODIES].hold(limits.body_bytes if grows else size or 0):
        yield await read_body(request, limits)


async def read_json(request: web.Request, kind: type[T], limits: Limits) -> T:
    async with held_body(request, limits) as body:
        if len(body) > _OFF_LOOP:
            return await asyncio.get_running_loop().run_in_executor(None, decode, body, kind, limits)
        return decode(body, kind, limits)


def decode(body: bytes, kind: type[T], limits: Limits) -> T:
    """Raises InvalidRequest, naming the parameter where a type is wrong."""
    if not body.strip():
        raise InvalidRequest("the body is empty; JSON is expected", code="invalid_json")
    check_json_depth(body, limits)
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise invalid(error) from error
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}", code="invalid_json") from error


def invalid(error: msgspec.ValidationError) -> InvalidRequest:
    match = _AT.match(str(error))
    assert match is not None
    what, where = match[1], match[2]
    if where:
        return InvalidRequest(f"{where}: {what}", param=where, code="invalid_type")
    missing = re.search(r"missing required field `(\w+)`", what)
    return InvalidRequest(what, param=missing[1] if missing else None, code="missing" if missing else "invalid_type")
