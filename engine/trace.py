"""A timeline for `chrome://tracing` and Perfetto: what the host did, and when the device worked.

Events are kept as tuples and written when enough have gathered, and at the end; the file is valid JSON after `close`
and readable by both viewers before it (the format allows a missing end).
"""

from __future__ import annotations

import json
from pathlib import Path

HOST, DEVICE = 1, 2
_FLUSH = 128
"""Writing one batch takes a tenth of a millisecond of the loop, which the step in hand covers."""


class Trace:
    """Times are seconds on the engine's monotonic clock."""

    def __init__(self, path: str, engine: int) -> None:
        target = Path(path)
        if engine:
            target = target.with_name(f"{target.stem}-{engine}{target.suffix}")
        self._file = target.open("w", encoding="utf-8")
        self._engine = engine
        self._events: list[tuple[int, str, float, float, dict[str, int]]] = []
        self._file.write("[")
        names = ((HOST, "host"), (DEVICE, "device"))
        self._file.write(
            ",\n".join(
                json.dumps({"name": "thread_name", "ph": "M", "pid": engine, "tid": tid, "args": {"name": name}})
                for tid, name in names
            )
        )

    def add(self, track: int, name: str, began: float, seconds: float, **facts: int) -> None:
        self._events.append((track, name, began, seconds, facts))
        if len(self._events) >= _FLUSH:
            self._flush()

    def _flush(self) -> None:
        # Names are ours and plain, so that nothing needs escaping; `json` would take four times as long.
        lines = [
            f',\n{{"name": "{name}", "ph": "X", "ts": {began * 1e6:.2f}, "dur": {seconds * 1e6:.2f}, '
            f'"pid": {self._engine}, "tid": {track}, "args": {_object(facts)}}}'
            for track, name, began, seconds, facts in self._events
        ]
        self._events.clear()
        self._file.write("".join(lines))
        self._file.flush()

    def close(self) -> None:
        self._flush()
        self._file.write("\n]\n")
        self._file.close()


def _object(facts: dict[str, int]) -> str:
    return "{" + ", ".join([f'"{key}": {value}' for key, value in facts.items()]) + "}"
