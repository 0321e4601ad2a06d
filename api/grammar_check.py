"""Tries each new grammar in a process of its own, within a time and a memory, before an engine sees it.

Knows no xgrammar: the worker does. What was found good is remembered (a bounded table of digests), so that the
usual request, which repeats a schema, costs nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import struct
import sys
from collections import OrderedDict
from typing import Any

import msgspec

from tsd.api.errors import InvalidRequest, Unavailable
from tsd.engine.protocol import Grammar, Vocabulary

log = logging.getLogger("tsd.api.grammar")

REMEMBERED = 4096
START_S = 20.0
WAITING = 64
"""Different constraints that may wait for the worker."""
WAIT_S = 30.0
"""And how long."""


def _look(trial: asyncio.Task[str]) -> None:
    """Whoever asked may have left: what the trial raised is then nobody's to retrieve."""
    if not trial.cancelled():
        trial.exception()


class GrammarChecker:
    """One worker, started by `start` or when the first constraint comes."""

    def __init__(self, vocabulary: Vocabulary, seconds: float) -> None:
        self._vocabulary = vocabulary
        self._seconds = seconds
        self._process: asyncio.subprocess.Process | None = None
        self._is_up = False
        self._starting: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._trials: dict[bytes, asyncio.Task[str]] = {}
        self._known: OrderedDict[bytes, str] = OrderedDict()
        """Digest → what is wrong with it, or empty."""

    def start(self) -> None:
        """Has the worker ready before anyone waits for it."""
        self._starting = asyncio.create_task(self._start())

    @property
    def state(self) -> str:
        """`ready`, `starting`, or `off`: the worker starts again when it is needed."""
        if self._is_up:
            return "ready"
        return "starting" if self._process is not None else "off"

    async def _start(self) -> None:
        async with self._lock:
            try:
                await self._worker()
            except (Unavailable, OSError) as error:
                log.warning("the grammar worker does not start; the next constraint tries again: %s", error)

    async def check(self, grammar: Grammar, param: str = "response_format") -> None:
        """Raises InvalidRequest, naming `param`, for a grammar that does not compile in time, Unavailable when too
        many wait.

        Requests with the same grammar share one trial, which goes on when the client that asked first leaves.
        """
        key = hashlib.blake2b(f"{grammar.kind}\0{grammar.text}".encode(), digest_size=16).digest()
        fault = self._known.get(key)
        if fault is None:
            trial = self._trials.get(key)
            if trial is None:
                if len(self._trials) >= WAITING:
                    raise Unavailable("too many new constraints are being compiled", retry_after=1)
                trial = self._trials[key] = asyncio.create_task(self._learn(key, grammar))
                trial.add_done_callback(_look)
            try:
                async with asyncio.timeout(WAIT_S):
                    fault = await asyncio.shield(trial)
            except TimeoutError:
                raise Unavailable("the constraint is still waiting to be compiled", retry_after=2) from None
        else:
            self._known.move_to_end(key)
        if fault:
            raise InvalidRequest(fault, param=param, code="invalid_grammar")

    async def _learn(self, key: bytes, grammar: Grammar) -> str:
        try:
            async with self._lock:
                fault = await self._try(grammar)
        finally:
            del self._trials[key]
        self._known[key] = fault
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return fault

    async def close(self) -> None:
        """Ends the worker and every trial."""
        trials: list[asyncio.Task[Any]] = list(self._trials.values())
        if self._starting is not None:
            trials.append(self._starting)
        for trial in trials:
            trial.cancel()
        await asyncio.gather(*trials, return_exceptions=True)
        await self._end_worker()

    async def _end_worker(self) -> None:
        process, self._process, self._is_up = self._process, None, False
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()

    async def _try(self, grammar: Grammar) -> str:
        process = await self._worker()
        try:
            async with asyncio.timeout(self._seconds):
                answer = await self._ask(process, (grammar.kind, grammar.text))
        except TimeoutError:
            await self._end_worker()
            return f"the {grammar.kind} takes over {self._seconds:g} s to compile"
        except (EOFError, ConnectionError):
            code = await process.wait()
            self._process = None
            log.warning("the grammar worker ended (%s) while it compiled a %s", code, grammar.kind)
            return f"the {grammar.kind} cannot be compiled"
        except BaseException:
            # Cancelled half way: its answer would be taken for the next one's.
            await self._end_worker()
            raise
        return "" if answer[0] else answer[1]

    async def _worker(self) -> asyncio.subprocess.Process:
        process = self._process
        if process is not None and process.returncode is None:
            return process
        self._is_up = False
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tsd.api.grammar_worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        self._process = process
        try:
            async with asyncio.timeout(START_S):
                await self._ask(process, self._vocabulary)
        except (TimeoutError, EOFError, ConnectionError) as error:
            await self._end_worker()
            raise Unavailable("constraints on the output cannot be checked: the worker does not start") from error
        self._is_up = True
        return process

    async def _ask(self, process: asyncio.subprocess.Process, value: object) -> tuple[bool, str]:
        assert process.stdin is not None and process.stdout is not None
        request = msgspec.msgpack.encode(value)
        process.stdin.write(struct.pack("<I", len(request)) + request)
        await process.stdin.drain()
        head = await process.stdout.readexactly(4)
        data = await process.stdout.readexactly(struct.unpack("<I", head)[0])
        return msgspec.msgpack.decode(data, type=tuple[bool, str])
