"""What the first front (the lead) and the others (members) say to each other, on one Unix socket.

A member connects, says `Hello`, later `Loaded`; the lead asks, each `Ask` gets one `Answer`. When the channel closes
the other side is gone. Frames are those of `engine.transport`.
"""

from __future__ import annotations

import msgspec


class Ask(msgspec.Struct, tag="ask"):
    """beat, serve, state, log_level, figures, latency, requests, idle (answered when no request runs) or fail."""

    serial: int
    name: str
    argument: bytes = b""


class Prefixes(msgspec.Struct, tag="prefixes"):
    """An engine got prompts with these prefixes (`Fleet.learn`); the lead passes it on to the other members."""

    engine: int
    keys: bytes
    """uint64."""


class Hello(msgspec.Struct, tag="hello"):
    front: int


class Loaded(msgspec.Struct, tag="loaded"):
    """Could take requests now."""


class Broken(msgspec.Struct, tag="broken"):
    """Cannot go on, while the lead may not know."""

    message: str


class Answer(msgspec.Struct, tag="answer"):
    serial: int
    payload: bytes = b""


ToLead = Hello | Loaded | Broken | Answer | Prefixes
ToMember = Ask | Prefixes
