"""A request while it lives in this engine: what its front asked, and what the executor needs beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tsd.engine.protocol import Submit, TokenLogprobs


@dataclass(slots=True, eq=False)
class LiveRequest:
    """The payload of the scheduler's request."""

    id: int
    submit: Submit
    arrived: float
    seed: int
    """Keys the request's random stream, 0 <= seed < 2**63."""
    started: bool = False
    make_grammar_row: Callable[[], Any] | None = None
    """Makes the request's place in its grammar, at the beginning of its output."""
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """Gathered until the first token goes out; None where the client did not ask."""
