"""Recordings of the stream: one JSON line a snapshot, gzipped when the file's name ends in `.gz`.

    {"tsd_recording": 1, "url": "…", "time": unix_s}
    {"at": seconds since the first line, "snapshot": {…}}
    {"at": …, "link": "down", "detail": "…"}

Owns the format, writing, and playing with the gaps as they were. Knows nothing about screens. A recording holds
request ids and client names, and never a prompt or an output.
"""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import msgspec

from tsd.console.errors import CommandError, UsageError
from tsd.console.link import Link, LinkState
from tsd.console.snapshot import decode_snapshot
from tsd.console.source import Sink

NO_SNAPSHOT = msgspec.Raw()


class Head(msgspec.Struct):
    tsd_recording: int
    url: str = ""
    time: float = 0.0


class Line(msgspec.Struct, omit_defaults=True):
    at: float
    snapshot: msgspec.Raw = NO_SNAPSHOT
    link: LinkState | None = None
    detail: str = ""


def open_file(path: Path, mode: str) -> IO[bytes]:
    """Opens a recording. Raises UsageError when the file cannot be opened."""
    try:
        if path.suffix == ".gz":
            return gzip.open(path, mode)  # type: ignore[return-value]
        return path.open(mode)
    except OSError as error:
        raise UsageError(f"cannot open the recording {path}: {(error.strerror or str(error)).lower()}") from None


class Recorder:
    """Appends what a source says to a new file. Refuses to overwrite one."""

    def __init__(self, path: Path, url: str, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self.clock = clock
        self.started = clock()
        self.snapshots = 0
        self.error = ""
        self._file: IO[bytes] | None = open_file(path, "xb")
        self._write(msgspec.json.encode(Head(1, url, self.started)))

    def snapshot(self, raw: bytes) -> None:
        """Records one snapshot as the server sent it (a JSON object)."""
        # A payload may span lines on the wire; in the file it must not.
        self._write(msgspec.json.encode(Line(self._at(), snapshot=msgspec.Raw(raw.replace(b"\n", b" ")))))
        self.snapshots += 1

    def link(self, link: Link) -> None:
        self._write(msgspec.json.encode(Line(self._at(), link=link.state, detail=link.detail)))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _at(self) -> float:
        return round(self.clock() - self.started, 3)

    def _write(self, line: bytes) -> None:
        if self._file is None:
            return
        try:
            self._file.write(line + b"\n")
            self._file.flush()
        except OSError as error:
            # A full disk ends the recording, not the console.
            self.error = f"recording stopped: {(error.strerror or str(error)).lower()}"
            self._file = None


def read_recording(path: Path) -> tuple[Head, Iterator[Line]]:
    """The head of a recording and its lines, read as they are asked for.

    Raises UsageError when the file is no recording; a line cut short at the end (a killed console) ends it quietly.
    """
    file = open_file(path, "rb")
    try:
        head = msgspec.json.decode(file.readline(), type=Head)
    except (msgspec.DecodeError, OSError, EOFError):
        file.close()
        raise UsageError(f"{path} is no recording of a console") from None
    if head.tsd_recording != 1:
        file.close()
        raise UsageError(f"{path} was recorded by another version of the console ({head.tsd_recording})")
    return head, _lines(path, file)


def _lines(path: Path, file: IO[bytes]) -> Iterator[Line]:
    decoder = msgspec.json.Decoder(Line)
    with file:
        number = 1
        while True:
            try:
                text = file.readline()
            except (EOFError, OSError):
                return
            number += 1
            if not text.endswith(b"\n"):
                return
            try:
                yield decoder.decode(text)
            except msgspec.DecodeError as error:
                raise UsageError(f"{path}, line {number}: {error}") from None


class ReplaySource:
    """Plays a recording: `speed` times as fast as it was, and at most `max_gap_s` between two lines."""

    def __init__(
        self, path: Path, speed: float = 1.0, max_gap_s: float = 5.0, clock: Callable[[], float] = time.time
    ) -> None:
        self.path = path
        self.speed = speed
        self.max_gap_s = max_gap_s
        self.clock = clock
        self.head, self._recorded = read_recording(path)

    async def run(self, sink: Sink) -> None:
        url = self.head.url or str(self.path)
        last = 0.0
        played = 0
        try:
            for line in self._recorded:
                await asyncio.sleep(min(self.max_gap_s, max(0.0, line.at - last)) / self.speed)
                last = line.at
                if line.link is not None:
                    sink.link_changed(Link(line.link, url, line.detail, self.head.time + line.at))
                elif bytes(line.snapshot):
                    if not played:
                        sink.link_changed(Link(LinkState.LIVE, url, "replay", self.head.time + line.at))
                    snapshot = decode_snapshot(bytes(line.snapshot))
                    sink.snapshot_arrived(snapshot, bytes(line.snapshot))
                    played += 1
        except CommandError as error:
            sink.link_changed(Link(LinkState.GARBAGE, url, str(error), self.clock()))
            return
        sink.link_changed(Link(LinkState.ENDED, url, f"{played} snapshots played", self.clock()))
