"""The console's link to a server: the states it can be in and the words an operator reads for each.

Owns the wording; knows nothing about sockets or screens.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tsd.console.errors import ConsoleError, ForeignServer, GarbageStream, KeyRefused


class LinkState(StrEnum):
    CONNECTING = "connecting"
    LIVE = "live"
    STALE = "stale"
    DOWN = "down"
    REFUSED = "refused"
    FOREIGN = "foreign"
    GARBAGE = "garbage"
    ENDED = "ended"


@dataclass(frozen=True)
class Link:
    """The link at one moment. `since` is Unix seconds; `retry_s` the pause before the next attempt, if one follows."""

    state: LinkState
    url: str
    detail: str = ""
    since: float = 0.0
    attempt: int = 0
    retry_s: float | None = None

    @property
    def live(self) -> bool:
        return self.state is LinkState.LIVE

    @property
    def headline(self) -> str:
        return HEADLINES[self.state]

    @property
    def advice(self) -> str:
        return ADVICE[self.state]


HEADLINES = {
    LinkState.CONNECTING: "connecting",
    LinkState.LIVE: "live",
    LinkState.STALE: "the server stalls: these numbers are old",
    LinkState.DOWN: "the server is down",
    LinkState.REFUSED: "the server refuses the key",
    LinkState.FOREIGN: "no tsd server of this version",
    LinkState.GARBAGE: "the stream makes no sense",
    LinkState.ENDED: "end of the recording",
}

ADVICE = {
    LinkState.CONNECTING: "",
    LinkState.LIVE: "",
    LinkState.STALE: "The connection is open, but nothing comes. A step may be stuck: try GET /health.",
    LinkState.DOWN: "Is it started (tsd start), and is --url right? The console keeps trying.",
    LinkState.REFUSED: "Give the admin key with --admin-key or TSD_ADMIN_KEY.",
    LinkState.FOREIGN: "Check --url, and that the server and this console are of the same release.",
    LinkState.GARBAGE: "Something between the server and the console may be rewriting it. Check --url.",
    LinkState.ENDED: "Press q to leave.",
}


def state_of(error: ConsoleError) -> LinkState:
    """The link state that an error of the source means."""
    if isinstance(error, KeyRefused):
        return LinkState.REFUSED
    if isinstance(error, ForeignServer):
        return LinkState.FOREIGN
    if isinstance(error, GarbageStream):
        return LinkState.GARBAGE
    return LinkState.DOWN
