"""Grammars on their way into the engine: compiled in a thread, so that the step loop does not wait for them.

Owns the one backend of this engine's vocabulary. Knows nothing of rows, masks or sampling.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from tsd.engine.protocol import Grammar, Vocabulary

if TYPE_CHECKING:
    from tsd.engine.grammar import GrammarBackend


log = logging.getLogger("tsd.engine")


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
            self._loop.run_in_executor(self._pool, self._warm).add_done_callback(_log_failure)

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

    def _warm(self) -> GrammarBackend:
        # xgrammar is imported here, in the thread: most servers never see a grammar.
        from tsd.engine.grammar import GrammarBackend

        if self._backend is None:
            assert self._vocabulary is not None
            self._backend = GrammarBackend(self._vocabulary, self._vocab_size)
        return self._backend

    def _compile(self, grammar: Grammar) -> Callable[[], Any]:
        backend = self._warm()
        from tsd.engine.grammar import GrammarRow

        compiled = backend.compile(grammar)
        return lambda: GrammarRow(compiled, grammar)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _log_failure(warming: asyncio.Future[GrammarBackend]) -> None:
    """The first grammar meets the same fault, and its client hears of it."""
    if not warming.cancelled() and warming.exception() is not None:
        log.warning("grammars cannot be compiled: %s", warming.exception())
