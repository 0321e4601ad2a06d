"""Responses, kept for `previous_response_id` and `GET`: finished ones, and those in the background."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from tsd.api.background import EventLog
from tsd.api.kept import KeptStore
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


class ResponseStore(KeptStore[Stored]):
    def __init__(self, fronts: int = 1) -> None:
        """One of `fronts` stores that share the bounds."""
        super().__init__("response", MAX_RESPONSES // fronts, MAX_BYTES // fronts)

    def put(self, name: str, stored: Stored) -> None:
        self.keep(name, stored, stored.size)
