"""Chooses an engine for a request: least load, unless another one holds a long enough prefix of it.

A front does not see the engines' caches; it remembers which engine got which prefixes, in a bounded table. Several
fronts tell each other: a session's next turn may come through any of them.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from collections import OrderedDict
from collections.abc import Callable

from tsd.api.engines import EngineClient
from tsd.api.errors import Overloaded, Unavailable
from tsd.api.limits import Limits

BLOCK = 256
"""Tokens a remembered prefix grows by."""
DEPTH = 64
REMEMBERED = 65_536
TOKENS_PER_REQUEST = 512
"""How many cached tokens outweigh one request more on an engine."""


class Fleet:
    """Every engine of this front."""

    def __init__(self, engines: list[EngineClient], limits: Limits, secret: bytes = b"") -> None:
        """`secret` keys the prefixes' names; fronts that tell each other share it."""
        self.engines = engines
        self.on_learned: Callable[[int, list[int]], None] | None = None
        """Told the engine and the keys that are new."""
        self._secret = secret or os.urandom(16)
        self._limits = limits
        self._seen: OrderedDict[tuple[int, int], None] = OrderedDict()

    @property
    def all_ready(self) -> bool:
        return bool(self.engines) and all(engine.state == "ready" for engine in self.engines)

    @property
    def dead(self) -> EngineClient | None:
        return next((engine for engine in self.engines if engine.state == "dead"), None)

    def pick(self, prompt: array[int], salt: str | None, more: int = 1) -> EngineClient:
        """For `more` sequences of this prompt. Raises Unavailable or Overloaded."""
        ready = [engine for engine in self.engines if engine.state == "ready"]
        if not ready:
            raise Unavailable("no engine is ready", retry_after=1)
        tokens = len(prompt) * more
        open_ones = [
            engine
            for engine in ready
            if engine.waiting + more <= self._limits.queued_requests
            and engine.queued_tokens + tokens <= self._limits.queued_tokens
        ]
        if not open_ones:
            raise Overloaded("the queue is full; try again later", retry_after=1)
        if len(self.engines) == 1:
            return open_ones[0]
        keys = _prefix_keys(prompt, salt, self._secret)
        best = min(
            open_ones, key=lambda engine: (engine.load - self._known(engine, keys) / TOKENS_PER_REQUEST, engine.engine)
        )
        new = [key for key in keys if (best.engine, key) not in self._seen]
        self.learn(best.engine, keys)
        if new and self.on_learned is not None:
            self.on_learned(best.engine, new)
        return best

    def _known(self, engine: EngineClient, keys: list[int]) -> int:
        """Tokens of the longest remembered prefix."""
        known = 0
        for key in keys:
            if (engine.engine, key) not in self._seen:
                break
            known += BLOCK
        return known

    def learn(self, engine: int, keys: list[int]) -> None:
        """That engine gets, or got from another front, these prefixes."""
        for key in keys:
            self._seen[engine, key] = None
            self._seen.move_to_end((engine, key))
        while len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)


def _prefix_keys(prompt: array[int], salt: str | None, secret: bytes = b"") -> list[int]:
    """A chained keyed hash for each whole block, at most DEPTH."""
    keys: list[int] = []
    chain = hashlib.blake2b((salt or "").encode(), digest_size=8, key=secret).digest()
    for start in range(0, min(len(prompt) - BLOCK, BLOCK * (DEPTH - 1)) + 1, BLOCK):
        block = prompt[start : start + BLOCK].tobytes()
        chain = hashlib.blake2b(chain + block, digest_size=8, key=secret).digest()
        keys.append(int.from_bytes(chain, "little"))
    return keys
