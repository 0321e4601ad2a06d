"""The snapshot's schema: tolerant of what is missing, strict about what is wrong."""

from __future__ import annotations

import json

import msgspec
import pytest

from tsd.console.demo import DemoFleet
from tsd.console.errors import ForeignServer, GarbageStream
from tsd.console.snapshot import Engine, RequestRow, decode_snapshot


def test_the_smallest_snapshot_decodes_to_nothing_known():
    snapshot = decode_snapshot(b'{"version": 1, "engines": [{}]}')
    assert snapshot.engines == (Engine(),)
    assert snapshot.server.model is None
    assert snapshot.engines[0].tiers.device.available is None


def test_null_means_absent_everywhere():
    snapshot = decode_snapshot(
        b'{"version": 1, "time": 5, "gpus": null, "server": {"slo": null, "latency": {"ttft_ms": {"p50": null}}},'
        b' "engines": [{"tiers": {"device": {"total": null}, "host": null}, "requests": null, "graphs": null}]}'
    )
    assert snapshot.gpus == () and snapshot.engines[0].requests == ()
    assert snapshot.engines[0].tiers.host is None


def test_rows_may_be_short_long_or_hold_nulls():
    rows = '[["a"], ["b", "Decoding", 1.5, 10, null, 3, 2.5, 0, 0, null], ["c","x",1,2,3,4,5,6,7,"me","new field"]]'
    engine = decode_snapshot(f'{{"version": 1, "engines": [{{"requests": {rows}}}]}}').engines[0]
    assert engine.requests[0] == RequestRow("a")
    assert engine.requests[1].cached is None and engine.requests[1].output == 3
    assert engine.requests[2].client == "me"


def test_unknown_keys_are_skipped():
    assert decode_snapshot(b'{"version": 1, "engines": [], "weather": {"sun": [1]}}').engines == ()


@pytest.mark.parametrize("text", ["", "hello", "[1]", "null", "{}", '{"version": 1}', "[" * 5000, '{"engines": []'])
def test_what_is_no_snapshot_is_garbage(text):
    with pytest.raises(GarbageStream):
        decode_snapshot(text)


def test_bytes_that_are_no_text_are_garbage():
    with pytest.raises(GarbageStream):
        decode_snapshot(b"\xff\xfe\x00")


def test_a_wrong_type_names_its_place():
    with pytest.raises(GarbageStream, match=r"running"):
        decode_snapshot(b'{"version": 1, "engines": [{"running": "many"}]}')


@pytest.mark.parametrize(
    ("version", "word"), [("2", "newer"), ("0", "older"), ('"1"', "too old"), ("true", "too old"), ("null", "too old")]
)
def test_another_version_is_named(version, word):
    with pytest.raises(ForeignServer, match=word):
        decode_snapshot(f'{{"version": {version}, "engines": []}}')


def test_a_page_map_that_is_no_base64_is_empty():
    engine = decode_snapshot(b'{"version": 1, "engines": [{"page_map": {"bin_pages": 2, "states": "%%%"}}]}').engines[0]
    assert engine.page_map.decode() == b""


def test_the_demo_speaks_the_schema_exactly():
    """What the fake source sends survives a round trip: no field of it is misspelt."""
    fleet = DemoFleet(engines=2, requests=40, pages=4096)
    for _ in range(120):
        fleet.tick()
    raw = fleet.report()
    back = json.loads(msgspec.json.encode(decode_snapshot(json.dumps(raw))))

    def covered(sent, kept, path):
        if isinstance(sent, dict):
            for key, value in sent.items():
                assert key in kept, f"{path}.{key}"
                covered(value, kept[key], f"{path}.{key}")
        elif isinstance(sent, list):
            assert len(sent) == len(kept), path
            for place, (one, other) in enumerate(zip(sent, kept, strict=True)):
                covered(one, other, f"{path}[{place}]")
        else:
            assert sent == kept or abs(sent - kept) < 1e-6, path

    covered(raw, back, "snapshot")
