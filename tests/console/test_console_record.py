"""Recordings: what goes in comes out, and what is none is refused in plain words."""

from __future__ import annotations

import asyncio
import gzip
import itertools

import pytest
from support.console import Heard

from tsd.console.demo import DemoFleet
from tsd.console.errors import UsageError
from tsd.console.link import Link, LinkState
from tsd.console.record import Recorder, ReplaySource, read_recording
from tsd.console.snapshot import decode_snapshot


def record(path, seconds=5):
    """A recording of a demo fleet with a break in it, and the snapshots that went in."""
    ticks = itertools.count(100.0, 0.5)
    recorder = Recorder(path, "http://host:8000", clock=lambda: next(ticks))
    fleet = DemoFleet(1, 8, 256)
    sent = []
    for second in range(seconds):
        fleet.tick()
        raw = fleet.encode()
        recorder.snapshot(raw)
        sent.append(decode_snapshot(raw))
        if second == 2:
            recorder.link(Link(LinkState.DOWN, "http://host:8000", "connection refused"))
    recorder.close()
    return sent


def play(path, speed=1000.0):
    sink = Heard()
    asyncio.run(ReplaySource(path, speed).run(sink))
    return sink


@pytest.mark.parametrize("name", ["support.jsonl", "support.jsonl.gz"])
def test_round_trip(tmp_path, name):
    path = tmp_path / name
    sent = record(path)
    sink = play(path)
    assert sink.snapshots == sent
    assert sink.states == [LinkState.LIVE, LinkState.DOWN, LinkState.ENDED]
    assert sink.links[1].detail == "connection refused" and sink.links[0].url == "http://host:8000"
    assert sink.links[-1].detail == "5 snapshots played"


def test_gz_is_compressed(tmp_path):
    record(tmp_path / "a.gz")
    assert gzip.decompress((tmp_path / "a.gz").read_bytes()).startswith(b'{"tsd_recording":1')


def test_the_gaps_are_as_they_were(tmp_path):
    record(tmp_path / "a")
    _, lines = read_recording(tmp_path / "a")
    assert [line.at for line in lines] == [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]


def test_a_payload_of_several_lines_is_one_line(tmp_path):
    recorder = Recorder(tmp_path / "a", "u")
    recorder.snapshot(b'{"version": 1,\n "engines": []}')
    recorder.close()
    assert len((tmp_path / "a").read_bytes().splitlines()) == 2
    assert len(play(tmp_path / "a").snapshots) == 1


def test_a_recording_cut_short_plays_to_the_cut(tmp_path):
    sent = record(tmp_path / "a")
    data = (tmp_path / "a").read_bytes()
    (tmp_path / "b").write_bytes(data[: -len(data) // 20])
    sink = play(tmp_path / "b")
    assert sink.snapshots == sent[: len(sink.snapshots)] and sink.states[-1] is LinkState.ENDED


def test_a_broken_line_is_told_with_its_number(tmp_path):
    record(tmp_path / "a")
    lines = (tmp_path / "a").read_bytes().splitlines(keepends=True)
    lines[2] = b"{oops}\n"
    (tmp_path / "a").write_bytes(b"".join(lines))
    sink = play(tmp_path / "a")
    assert sink.states[-1] is LinkState.GARBAGE and "line 3" in sink.links[-1].detail


def test_a_file_is_not_overwritten(tmp_path):
    (tmp_path / "a").write_text("precious")
    with pytest.raises(UsageError, match="exists"):
        Recorder(tmp_path / "a", "u")
    assert (tmp_path / "a").read_text() == "precious"


@pytest.mark.parametrize("content", [b"", b"hello\n", b"{}\n", b'{"tsd_recording": 2}\n', b"\x1f\x8b"])
def test_what_is_no_recording(tmp_path, content):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(UsageError):
        ReplaySource(tmp_path / "a")


def test_a_missing_file(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        ReplaySource(tmp_path / "none")


def test_a_full_disk_ends_the_recording_and_not_the_console():
    from pathlib import Path

    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("needs /dev/full")
    recorder = Recorder.__new__(Recorder)
    recorder.path, recorder.clock, recorder.started, recorder.snapshots, recorder.error = full, lambda: 1.0, 0.0, 0, ""
    with full.open("wb", buffering=0) as file:
        recorder._file = file
        recorder.snapshot(b"{}")
        assert "no space left" in recorder.error
        recorder.snapshot(b"{}")
