"""Server-sent events: bytes in, whole `data` payloads out, however the bytes were cut."""

from __future__ import annotations


class SseReader:
    """Feed pieces of a stream in order; each call returns the payloads that became complete."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """Payloads of the events that end in this piece. Comments and other fields are skipped."""
        if self._rest:
            piece = self._rest + piece
        *lines, self._rest = piece.split(b"\n")
        events: list[bytes] = []
        for line in lines:
            if line.endswith(b"\r"):
                line = line[:-1]
            if not line:
                if self._data:
                    events.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
                    self._data = []
            elif line.startswith(b"data:"):
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
        return events

    def close(self) -> list[bytes]:
        """Payloads that a stream without a last empty line still holds."""
        return self.feed(b"\n\n")
