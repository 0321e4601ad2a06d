"""What a run sends: sessions of turns, made of shared pieces of prompt, and the shape of the HTTP request.

Owns the types that travel from the coordinator to the client workers. Knows nothing about how prompts were chosen.
A piece is a fragment of JSON encoded once (token ids `1,2,3`, the inside of a JSON string, or message objects):
building the body of a request is then a join of byte strings, however long the history is.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["ids", "text", "messages"]
History = Literal["token_ids", "tokenize", "random", "text", "none"]
"""How a later turn resends what the server generated: ids as the server gave them (`return_token_ids`); the text's ids
by `/tokenize`; random ids of the same number; the text itself; or nothing, for sessions of one turn."""


class Turn(msgspec.Struct, array_like=True, frozen=True):
    """One request of a session. `input_tokens` is the whole prompt's length as far as it is known (0: unknown)."""

    pieces: list[int]
    max_tokens: int
    input_tokens: int = 0
    wait_s: float = 0.0


class Session(msgspec.Struct, array_like=True, frozen=True):
    """Turns in order, each sent when the one before has ended; `at` is seconds after the start (open loop)."""

    turns: list[Turn]
    at: float | None = None


class Plan(msgspec.Struct, frozen=True):
    """Every session of a run."""

    kind: Kind
    pieces: list[bytes]
    sessions: list[Session]

    @property
    def num_requests(self) -> int:
        return sum(len(session.turns) for session in self.sessions)


class RequestShape(msgspec.Struct, frozen=True):
    """What all requests of a run share."""

    url: str
    endpoint: str
    model: str
    kind: Kind
    parameters: dict[str, object]
    history: History = "none"
    api_key: str | None = None
    insecure: bool = False
    idle_timeout_s: float = 300.0
    request_timeout_s: float = 6 * 3600.0
    keep_text: bool = False
    vocab_low: int = 0
    vocab_high: int = 1000

    def head(self) -> bytes:
        """The body up to the prompt."""
        field = {"ids": b'"prompt":[', "text": b'"prompt":"', "messages": b'"messages":['}[self.kind]
        fixed = msgspec.json.encode({"model": self.model, "stream": True, **self.parameters})
        return fixed[:-1] + b"," + field

    def tail(self, max_tokens: int) -> bytes:
        """The body after the prompt."""
        name = "max_completion_tokens" if self.kind == "messages" else "max_tokens"
        close = '"' if self.kind == "text" else "]"
        return f'{close},"{name}":{max_tokens}}}'.encode()

    @property
    def joint(self) -> bytes:
        return b"" if self.kind == "text" else b","


def ids_piece(ids: list[int]) -> bytes:
    """Token ids as a fragment of a JSON array."""
    return msgspec.json.encode(ids)[1:-1]


def text_piece(text: str) -> bytes:
    """Text as a fragment of a JSON string."""
    return msgspec.json.encode(text)[1:-1]


def message_piece(role: str, content: str) -> bytes:
    """One chat message."""
    return msgspec.json.encode({"role": role, "content": content})
