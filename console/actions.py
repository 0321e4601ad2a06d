"""What an operator can do to a server, and the call that does it. Owns names, keys, routes and the words of each
confirmation; knows nothing about screens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import msgspec

from tsd.console import http
from tsd.console.errors import ActionFailed, ConsoleError, ForeignServer, KeyRefused, ReadOnly
from tsd.console.source import auth_headers

LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True)
class Action:
    """One verb. `warning` is what the operator confirms."""

    name: str
    key: str
    title: str
    path: str
    warning: str


PAUSE = Action("pause", "P", "Pause", "/pause", "No request is admitted until it is resumed. Running ones are held.")
RESUME = Action("resume", "R", "Resume", "/resume", "Requests are admitted again.")
DRAIN = Action("drain", "D", "Drain", "/drain", "What runs is finished; new requests are refused with 503.")
FLUSH = Action(
    "flush", "F", "Flush cache", "/flush_cache", "Every cached prefix is dropped; TTFT rises until it refills."
)
ABORT = Action("abort", "x", "Abort request", "/abort", "The request ends at once and its pages are freed.")
LOG_LEVEL = Action("log level", "L", "Set log level", "/admin/log_level", "Debug logs slow the server down.")

ACTIONS = (PAUSE, RESUME, DRAIN, FLUSH, ABORT, LOG_LEVEL)


class Operator:
    """Sends actions to one server, and asks it for details. Refuses every action when `read_only`."""

    def __init__(self, url: str, key: str | None = None, read_only: bool = False, timeout_s: float = 10.0) -> None:
        self.address = http.parse_url(url)
        self.read_only = read_only
        self.timeout_s = timeout_s
        self._headers = auth_headers(key)

    async def act(self, action: Action, body: dict[str, str] | None = None) -> str:
        """Does it and returns what the server said. Raises a ConsoleError when it refuses."""
        if self.read_only:
            raise ReadOnly("this console is read-only: start it without --read-only to act")
        answer = await self._call("POST", action.path, msgspec.json.encode(body or {}))
        found = _decoded(answer)
        if isinstance(found, dict):
            for name in ("message", "status", "detail"):
                if isinstance(found.get(name), str):
                    return found[name]
        return "done"

    async def request_detail(self, request_id: str) -> dict[str, Any]:
        """`GET /admin/requests?id=`: the request's timeline."""
        return await self._get("/admin/requests", {"id": request_id})

    async def page_detail(self, engine: int, page_bin: int) -> dict[str, Any]:
        """`GET /admin/pages?engine=&bin=`: owners and keys of the pages of a bin."""
        return await self._get("/admin/pages", {"engine": str(engine), "bin": str(page_bin)})

    async def kernels(self) -> list[Any]:
        """`GET /admin/kernels`: the engines' selections, which the stream sends only when they change."""
        found = _decoded(await self._call("GET", "/admin/kernels"))
        if isinstance(found, dict):
            found = found.get("engines", found.get("kernels"))
        return found if isinstance(found, list) else []

    async def _get(self, path: str, query: dict[str, str]) -> dict[str, Any]:
        found = _decoded(await self._call("GET", f"{path}?{urlencode(query)}"))
        if not isinstance(found, dict):
            raise ForeignServer(f"{path} does not answer with an object")
        return found

    async def _call(self, method: str, path: str, body: bytes = b"") -> bytes:
        response = await http.request(method, self.address, path, self._headers, body, self.timeout_s)
        try:
            text = await response.text()
        finally:
            response.close()
        if response.status in (401, 403):
            raise KeyRefused("the server refuses the admin key: give it with --admin-key or TSD_ADMIN_KEY")
        if response.status >= 400:
            raise ActionFailed(f"the server refuses (HTTP {response.status}): {_message(text)}")
        return text


def _decoded(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text) if text.strip() else None
    except msgspec.DecodeError:
        return None


def _message(text: bytes) -> str:
    """The sentence in an error answer."""
    found = _decoded(text)
    if isinstance(found, dict):
        error = found.get("error", found.get("detail", found.get("message")))
        if isinstance(error, dict):
            error = error.get("message")
        if isinstance(error, str):
            return error
    return text[:200].decode("utf-8", "replace").strip() or "no reason given"


__all__ = ["ACTIONS", "LOG_LEVELS", "Action", "ConsoleError", "Operator"]
