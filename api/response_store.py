"""Responses, kept in memory for `previous_response_id` and `GET`: bounded in number and in bytes.

Finished ones, and those that run in the background.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Protocol

from tsd.api.background import EventLog
from tsd.api.errors import NotFound
from tsd.api.wire.chat import ChatMessage

MAX_RESPONSES = 2048
MAX_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True)
class Stored:
    owner: str
    body: bytes
    """The response object as JSON."""
    input_items: list[dict[str, Any]]
    conversation: list[ChatMessage]
    """Everything said up to and with this response, without instructions."""
    size: int
    background: bool = False
    running: RunningResponse | None = None
    """While it runs in the background: `body` is not read then, and `conversation` is not known."""
    log: EventLog | None = None
    """Of one that was asked for as a stream in the background."""


class RunningResponse(Protocol):
    def now(self) -> bytes:
        """The response object as JSON, as far as it has come."""

    def cancel(self) -> None:
        """Its end comes soon after."""


class ResponseStore:
    """Oldest first out. Only its owner sees a response."""

    def __init__(self, fronts: int = 1) -> None:
        """One of `fronts` stores that share the bounds."""
        self._most = MAX_RESPONSES // fronts
        self._most_bytes = MAX_BYTES // fronts
        self._kept: OrderedDict[str, Stored] = OrderedDict()
        self._bytes = 0

    def put(self, name: str, stored: Stored) -> None:
        if stored.size > self._most_bytes:
            return
        if (old := self._kept.pop(name, None)) is not None:
            self._bytes -= old.size
        self._kept[name] = stored
        self._bytes += stored.size
        while len(self._kept) > self._most or self._bytes > self._most_bytes:
            _, old = self._kept.popitem(last=False)
            self._bytes -= old.size

    def __contains__(self, name: str) -> bool:
        return name in self._kept

    def get(self, name: str, owner: str, param: str = "response_id") -> Stored:
        """Raises NotFound for one that is not kept, or another's."""
        stored = self._kept.get(name)
        if stored is None or stored.owner != owner:
            raise NotFound("there is no such response", param=param, code="response_not_found")
        return stored

    def delete(self, name: str, owner: str) -> None:
        self._bytes -= self.get(name, owner).size
        del self._kept[name]
