"""Grammars on their way into the engine: compiled in a thread, so that the step loop does not wait for them.

Owns the one backend of this engine's vocabulary. Knows nothing of rows, masks or sampling.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from tsd.engine.protocol import Grammar, Vocabulary

if TYPE_CHECKING:
    from tsd.engine.grammar import GrammarBackend


class GrammarIntake:
    """One compilation at a time. `compile` calls back on the loop with a maker of rows, or with what went wrong."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._vocabulary: Vocabulary | None = None
        self._backend: GrammarBackend | None = None
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="tsd-grammar")
        self._loop = asyncio.get_running_loop()

    def learn(self, vocabulary: Vocabulary) -> None:
        """Every front tells the same; the first one counts."""
        if self._vocabulary is None:
            self._vocabulary = vocabulary

    def compile(self, grammar: Grammar, done: Callable[[Callable[[], Any] | None, str], None]) -> None:
        if self._vocabulary is None:
            done(None, "the vocabulary is not known to the engine yet")
            return
        future = self._loop.run_in_executor(self._pool, self._compile, grammar)

        def finished(future: asyncio.Future[Callable[[], Any]]) -> None:
            error = future.exception()
            if error is not None:
                done(None, str(error))
            else:
                done(future.result(), "")

        future.add_done_callback(finished)

    def _compile(self, grammar: Grammar) -> Callable[[], Any]:
        # xgrammar is imported here: most servers never see a grammar, and it takes a while.
        from tsd.engine.grammar import GrammarBackend, GrammarRow

        if self._backend is None:
            assert self._vocabulary is not None
            self._backend = GrammarBackend(self._vocabulary, self._vocab_size)
        compiled = self._backend.compile(grammar)
        return lambda: GrammarRow(compiled, grammar)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
