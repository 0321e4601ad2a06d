"""What a front is among several: its number, and the way to the front that owns an id or speaks for all.

The lead (front 0) answers for the whole server: metrics, load, the operator's routes. What lives in one front (a
running request, a stored response) is answered there. A request that came to another front is sent on over the owner's
Unix socket, with its own headers, so that the owner checks its key as it checks every other.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

from aiohttp import web

from tsd.api.fronts.forward import Forwarder
from tsd.api.fronts.ids import front_of_id

LEAD = 0
LEAD_PATHS = frozenset(("/metrics", "/load", "/flush_cache", "/pause", "/resume", "/drain"))


def http_socket(folder: str, front: int) -> str:
    """Where a front takes requests from the others."""
    return str(Path(folder) / f"front{front}")


def lead_socket(folder: str) -> str:
    return str(Path(folder) / "lead")


class Group:
    """Common to lead and members."""

    def __init__(self, folder: str, number: int, count: int) -> None:
        self.folder = folder
        self.number = number
        self.count = count
        self.on_change: Callable[[], None] = lambda: None
        """`may_serve` may say another thing now."""
        self.on_prefixes: Callable[[int, list[int]], None] = lambda engine, keys: None
        """Another front gave an engine prompts with these prefixes."""
        self._forwarder = Forwarder(lambda front: http_socket(folder, front))

    def may_serve(self) -> bool:
        """Asked whenever this front by itself could take requests. True once every front can."""
        raise NotImplementedError

    def tell_prefixes(self, engine: int, keys: list[int]) -> None:
        """To every other front."""
        raise NotImplementedError

    def fault(self) -> str:
        """Why another front is not alive, or empty."""
        raise NotImplementedError

    def answers_for(self, request: web.Request) -> int | None:
        """The front that answers this route, where it is not this one and the path alone says so."""
        path = request.path
        if path in LEAD_PATHS or path.startswith("/admin/"):
            return self._not_here(LEAD)
        return self.owner(request.match_info.get("id", ""))

    def owner(self, name: str) -> int | None:
        """The front that owns an id, where it is not this one."""
        return self._not_here(front_of_id(name))

    def _not_here(self, front: int | None) -> int | None:
        """None also for a front that does not exist: the id is then unknown here as it is everywhere."""
        return None if front is None or front == self.number or front >= self.count else front

    async def forward(self, request: web.Request, to: int, body: bytes) -> web.StreamResponse:
        return await self._forwarder.send(request, to, body)

    async def close(self) -> None:
        await self._forwarder.close()


def came_from_a_front(request: web.Request) -> bool:
    """Over the Unix socket: it is answered here whatever it asks, so that nothing goes in circles."""
    if request.transport is None:
        return False
    end = request.transport.get_extra_info("socket")
    return end is not None and end.family == socket.AF_UNIX
