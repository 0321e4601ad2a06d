"""Reads a request's JSON body into a wire type: size, then depth, then types. Big ones off the loop."""

from __future__ import annotations

import asyncio
import re
from typing import TypeVar

import msgspec
from aiohttp import web

from tsd.api.errors import BodyTimeout, InvalidRequest, TooLarge
from tsd.api.limits import Limits, check_body_size, check_json_depth

T = TypeVar("T")
_OFF_LOOP = 128 * 1024
_AT = re.compile(r"^(.*?)(?: - at `(?:key in )?\$\.?(.*)`)?$", re.DOTALL)


async def read_body(request: web.Request, limits: Limits) -> bytes:
    """Raises TooLarge without reading on when the body is over the limit."""
    check_body_size(request.content_length, limits)
    try:
        async with asyncio.timeout(limits.body_seconds):
            return await request.read()
    except TimeoutError as error:
        raise BodyTimeout(f"the body did not arrive in {limits.body_seconds:g} seconds") from error
    except web.HTTPRequestEntityTooLarge as error:
        raise TooLarge(f"the body is over the limit of {limits.body_bytes} bytes") from error


async def read_json(request: web.Request, kind: type[T], limits: Limits) -> T:
    body = await read_body(request, limits)
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
