"""Server-sent events from bytes, in any chunking. Owns the framing; knows nothing about sockets or snapshots."""

from __future__ import annotations

from collections.abc import Iterator

from tsd.console.errors import GarbageStream

LIMIT = 16 << 20


class EventParser:
    """Feed bytes, take the `data` of each finished event. Comments, ids, names and retry hints are skipped."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self._rest = b""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The payloads that `chunk` finishes. Raises GarbageStream when one grows past the limit."""
        buffer = self._rest + chunk
        if b"\r" in buffer:
            # A trailing CR may be half of a CRLF: keep it for the next chunk.
            keep = b"\r" if buffer.endswith(b"\r") else b""
            buffer = buffer[: len(buffer) - len(keep)].replace(b"\r\n", b"\n").replace(b"\r", b"\n") + keep
        lines = buffer.split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > self.limit:
            raise GarbageStream(f"the stream has a line longer than {self.limit >> 20} MiB")
        for line in lines:
            if not line:
                if self._data:
                    payload = b"\n".join(self._data)
                    self._data, self._size = [], 0
                    yield payload
            elif line.startswith(b"data:"):
                value = line[6:] if line.startswith(b"data: ") else line[5:]
                self._size += len(value)
                if self._size > self.limit:
                    raise GarbageStream(f"the stream has an event longer than {self.limit >> 20} MiB")
                self._data.append(value)
