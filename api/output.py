"""What a generation gives, between the engine's tokens and a dialect's wire: deltas and endings."""

from __future__ import annotations

from typing import Protocol

import msgspec

from tsd.engine.protocol import TokenLogprobs


class CallDelta(msgspec.Struct, gc=False):
    """A piece of a tool call. `id` and `name` come with the first piece of call `index`."""

    index: int
    arguments: str = ""
    id: str = ""
    name: str = ""


class Delta(msgspec.Struct):
    """What one engine step added to one sequence."""

    content: str = ""
    reasoning: str = ""
    calls: list[CallDelta] = []
    tokens: list[int] = []
    logprobs: list[TokenLogprobs] | None = None
    """One a token, when they were asked for."""


class Ending(msgspec.Struct):
    """How a sequence ended."""

    reason: str
    """stop, length, abort or tool_calls."""
    stop: str | int | None = None
    """The stop string or token id that matched."""


class Parser(Protocol):
    """Splits text. Pure: any chunking of the same text gives the same concatenated result."""

    def push(self, text: str, delta: Delta) -> None:
        """Adds what is now certain to `delta`."""

    def finish(self, delta: Delta) -> None:
        """Adds what is still held."""

    @property
    def called(self) -> bool:
        """Whether a tool call came out."""

    @property
    def complete(self) -> bool:
        """Nothing more is wanted: the sequence can stop."""


class ReasoningSplitter(Protocol):
    """Splits text into reasoning and the rest. Pure, as `Parser` is."""

    reasoning: bool
    """Whether the text is inside reasoning now."""

    def push(self, text: str, delta: Delta) -> str:
        """Adds reasoning to `delta`; returns answer text."""

    def finish(self, delta: Delta) -> str:
        """As push, for what is still held."""
