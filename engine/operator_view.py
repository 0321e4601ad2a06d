"""What the admin snapshot says of single requests, prefixes, events and kernels: the scheduler's words made the wire's.

Owns the translation of keys to names, and of clocks. Knows nothing about sockets and JSON.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from tsd.engine.names import RequestNames
from tsd.scheduler.core import Scheduler
from tsd.scheduler.view import hot_prefixes, page_detail, request_rows

MAX_REQUESTS = 1000
MAX_PREFIXES = 16


class OperatorView:
    """`clock` is the scheduler's; `wall` gives Unix seconds."""

    def __init__(
        self,
        scheduler: Scheduler,
        names: RequestNames,
        clock: Callable[[], float],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._scheduler = scheduler
        self._names = names
        self._clock = clock
        self._wall = wall

    def parts(self) -> dict[str, Any]:
        """`requests`, `prefixes` and the `events` since the last call."""
        now = self._clock()
        shift = self._wall() - now
        return {
            "requests": [self._row(row) for row in request_rows(self._scheduler, now, MAX_REQUESTS)],
            "prefixes": hot_prefixes(self._scheduler, MAX_PREFIXES),
            "events": [
                [round(at + shift, 3), kind, self._names.of(key), cause, text]
                for at, kind, key, cause, text in self._scheduler.journal.take_events()
            ],
        }

    def timeline(self, key: int) -> list[tuple[float, str, str]] | None:
        """A request's timeline in seconds since it was queued."""
        entries = self._scheduler.journal.timeline(key)
        if not entries:
            return None
        start = entries[0][0]
        return [(round(at - start, 6), phase, detail) for at, phase, detail in entries]

    def pages(self, page_bin: int) -> dict[str, Any]:
        """Raises ValueError for a bin that does not exist."""
        detail = page_detail(self._scheduler, page_bin)
        for page in detail["pages"]:
            page["owners"] = [self._names.of(key) for key in page["owners"]]
        return detail

    def _row(self, row: Sequence[Any]) -> list[Any]:
        key, state, age, prompt, cached, output, speed, retractions, priority, live = row
        client = live.submit.client if live is not None else ""
        numbers = [prompt, cached, output, round(speed, 2), retractions, priority]
        return [self._names.of(key), state, round(age, 3), *numbers, client]
