"""The phases of a start on the terminal, one line each, with the time since launch."""

from __future__ import annotations

import sys
import time


def say(elapsed: float, text: str) -> None:
    print(f"[{elapsed:6.1f} s] {text}", file=sys.stderr, flush=True)


class StartDisplay:
    """Lines for people; percentages only where a person looks, which is a terminal."""

    def __init__(self, engines: int) -> None:
        self.began = time.monotonic()
        self._engines = engines
        self._shown: dict[int, int] = {}

    def note(self, text: str) -> None:
        say(time.monotonic() - self.began, text)

    def progress(self, engine: int, phase: str, detail: str, fraction: float | None) -> None:
        """A line for each new detail; a bare fraction prints at quarters, and only on a terminal."""
        if not detail:
            quarter = int((fraction or 0.0) * 4)
            if not sys.stderr.isatty() or quarter in (0, 4) or self._shown.get(engine) == quarter:
                return
            self._shown[engine] = quarter
            detail = f"{quarter * 25}%"
        self.note(f"{self._who(engine)}{phase:<8} {detail}")

    def engine_ready(self, engine: int, model: str, device: str, dtype: str, tokens: int) -> None:
        self.note(f"{self._who(engine)}engine   {model} on {device} in {dtype}, {tokens:,} tokens of KV memory")

    def fault(self, engine: int, text: str) -> None:
        who = f"engine {engine}" if engine >= 0 else "front"
        self.note(f"failed   {who}: {text}")

    def _who(self, engine: int) -> str:
        return f"engine {engine}: " if self._engines > 1 else ""
