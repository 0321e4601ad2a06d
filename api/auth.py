"""Who may call what: API keys, the admin key, CORS. Keys are compared in constant time and never logged."""

from __future__ import annotations

import hashlib
import hmac
from typing import NamedTuple

from aiohttp import web

from tsd.api.errors import Forbidden, Unauthorized
from tsd.api.options import ServerOptions


class Caller(NamedTuple):
    owner: str = ""
    """A digest of the key; empty without one."""
    is_admin: bool = False


CALLER: web.RequestKey[Caller] = web.RequestKey("caller", Caller)

OPEN_ROUTES = frozenset(("/health", "/ready"))
ADMIN_ROUTES = frozenset(("/flush_cache", "/pause", "/resume", "/drain"))


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


class Keys:
    """The configured keys, as digests."""

    def __init__(self, options: ServerOptions) -> None:
        self._keys = [_digest(key) for key in options.api_keys]
        self._admin = _digest(options.admin_key) if options.admin_key else None

    def check(self, request: web.Request) -> None:
        """Sets request[CALLER]. Raises Unauthorized or Forbidden."""
        path = request.path
        given = _digest(_presented(request))
        owner = ""
        for key in self._keys:
            if hmac.compare_digest(key, given):
                owner = key.hex()
        is_admin = self._admin is not None and hmac.compare_digest(self._admin, given)
        if self._admin is None:
            is_admin = bool(owner) if self._keys else True
        request[CALLER] = Caller(owner, is_admin)
        if path in OPEN_ROUTES or request.method == "OPTIONS":
            return
        if path in ADMIN_ROUTES or path.startswith("/admin/"):
            if not is_admin:
                raise (
                    Forbidden("this route needs the admin key")
                    if owner
                    else Unauthorized("the admin key is missing or wrong")
                )
            return
        if self._keys and not owner and not is_admin:
            raise Unauthorized("the API key is missing or wrong")


def _presented(request: web.Request) -> str:
    header = request.headers.get("Authorization", "")
    scheme, _, key = header.partition(" ")
    if scheme.lower() == "bearer":
        return key.strip()
    return request.headers.get("x-api-key", "")


def cors_headers(options: ServerOptions, origin: str) -> dict[str, str]:
    """Headers for an allowed origin; empty where CORS is off or the origin is another."""
    if not origin or not ("*" in options.cors_origins or origin in options.cors_origins):
        return {}
    return {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Allow-Headers": "authorization, content-type, x-api-key, anthropic-version, anthropic-beta",
        "Access-Control-Allow-Methods": "GET, POST, DELETE, OPTIONS",
        "Access-Control-Max-Age": "600",
        "Vary": "Origin",
    }
