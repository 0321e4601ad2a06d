"""KV events on the wire, read by a plain ZeroMQ subscriber and a plain msgpack decoder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq

from tsd.cache.event_config import EventsConfig, EventsConfigError, parse_config
from tsd.cache.event_publisher import END_OF_REPLAY, REPLAY_PATIENCE, EventPublisher, binds, offset_port
from tsd.cache.events import DEVICE, DISK, HOST, Change, as_array, to_events
from tsd.scheduler.core import Scheduler
from tsd.scheduler.types import RequestSpec, SchedulerConfig, StepLanded


def key(number: int) -> bytes:
    return number.to_bytes(8, "little") * 2


def ids(*tokens: int) -> bytes:
    return np.array(tokens, np.int32).tobytes()


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    made: zmq.Context[Any] = zmq.Context()
    yield made
    made.destroy(linger=0)


def subscriber(context: zmq.Context[Any], publisher: EventPublisher) -> zmq.Socket[Any]:
    socket = context.socket(zmq.SUB)
    socket.setsockopt(zmq.RCVTIMEO, 5000)
    socket.setsockopt(zmq.SUBSCRIBE, b"kv")
    socket.connect(publisher.endpoint)
    while True:  # A subscription takes a moment to arrive: say hello until it is heard.
        publisher.send([], 0.0)
        if socket.poll(20):
            break
    while socket.poll(50):
        socket.recv_multipart()
    return socket


def stored(number: int, *tokens: int, parent: int | None = None, tier: int = DEVICE) -> Change:
    return Change(tier, True, key(number), None if parent is None else key(parent), ids(*tokens))


def removed(number: int, tier: int = DEVICE) -> Change:
    return Change(tier, False, key(number), None, b"")


CHANGES = [
    stored(1, 1, 2),
    stored(2, 3, 4, parent=1),
    stored(9, 5, 6, parent=1),
    stored(1, 1, 2, tier=HOST),
    removed(2),
    removed(9),
    removed(1, HOST),
    stored(2, 3, 4, parent=1, tier=DISK),
]


def test_chains_and_removals_are_joined_tier_by_tier() -> None:
    events = [as_array(event) for event in to_events(CHANGES, 2)]
    rest = [None, None, 0, "full_attention"]
    assert events == [
        ["BlockStored", [1, 2], None, [1, 2, 3, 4], 2, None, "GPU", *rest],
        ["BlockStored", [9], 1, [5, 6], 2, None, "GPU", *rest],
        ["BlockStored", [1], None, [1, 2], 2, None, "CPU", *rest],
        ["BlockRemoved", [2, 9], "GPU", 0],
        ["BlockRemoved", [1], "CPU", 0],
        ["BlockStored", [2], 1, [3, 4], 2, None, "STORAGE", *rest],
    ]
    whole = to_events([stored(1, 1, 2, parent=7)], 2, whole_keys=True)
    assert as_array(whole[0])[1:3] == [[key(1)], key(7)]


class MapStored(msgspec.Struct, tag="BlockStored"):
    """What a subscriber of today's vLLM declares: fields without a default must be there, unknown ones are skipped."""

    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    group_idx: int | None = None


class MapRemoved(msgspec.Struct, tag="BlockRemoved"):
    block_hashes: list[bytes | int]
    medium: str | None


class MapCleared(msgspec.Struct, tag="AllBlocksCleared"):
    pass


class MapBatch(msgspec.Struct, array_like=True):
    ts: float
    events: list[MapStored | MapRemoved | MapCleared]
    data_parallel_rank: int | None = None


class FirstStored(msgspec.Struct, array_like=True, tag="BlockStored"):
    """As the first releases had it."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None


class FirstRemoved(msgspec.Struct, array_like=True, tag="BlockRemoved"):
    block_hashes: list[int]


class FirstCleared(msgspec.Struct, array_like=True, tag="AllBlocksCleared"):
    pass


class FirstBatch(msgspec.Struct, array_like=True):
    ts: float
    events: list[FirstStored | FirstRemoved | FirstCleared]


class MediumStored(FirstStored, array_like=True, tag="BlockStored"):
    """As they had it when host tiers came."""

    medium: str | None


class MediumBatch(msgspec.Struct, array_like=True):
    ts: float
    events: list[MediumStored | FirstRemoved | FirstCleared]


def test_the_wire_is_topic_sequence_and_a_msgpack_batch(context: zmq.Context[Any]) -> None:
    publisher = EventPublisher(EventsConfig(endpoint="tcp://127.0.0.1:0", topic="kv-events"), 2, context=context)
    try:
        socket = subscriber(context, publisher)
        sequence = publisher.publish([stored(5, 10, 11), removed(4)], 12.5)
        assert publisher.publish([], 13.0) is None
        publisher.clear(14.0)
        topic, number, payload = socket.recv_multipart()
        assert topic == b"kv-events"
        assert int.from_bytes(number, "big") == sequence
        plain = msgspec.msgpack.decode(payload)
        assert plain[0] == 12.5 and plain[2] == 0
        assert plain[1][0]["type"] == "BlockStored" and plain[1][0]["lora_name"] is None
        assert "extra_keys" not in plain[1][0]
        typed = msgspec.msgpack.decode(payload, type=MapBatch)
        assert typed.events == [MapStored([5], None, [10, 11], 2, None, "GPU", None, 0), MapRemoved([4], "GPU")]
        _, number, payload = socket.recv_multipart()
        assert int.from_bytes(number, "big") == (sequence or 0) + 1
        assert msgspec.msgpack.decode(payload, type=MapBatch).events == [MapCleared()]
        socket.close()
    finally:
        publisher.close()


def test_subscribers_of_older_releases_can_be_served(context: zmq.Context[Any]) -> None:
    config = EventsConfig(endpoint="tcp://127.0.0.1:0", topic="kv", event_format="array")
    publisher = EventPublisher(config, 2, rank=0, context=context)
    try:
        socket = subscriber(context, publisher)
        publisher.publish([stored(5, 10, 11, tier=HOST), removed(4)], 1.0)
        publisher.clear(2.0)
        _, _, payload = socket.recv_multipart()
        assert msgspec.msgpack.decode(payload, type=FirstBatch).events == [
            FirstStored([5], None, [10, 11], 2, None),
            FirstRemoved([4]),
        ]
        newer = msgspec.msgpack.decode(payload, type=MediumBatch).events[0]
        assert isinstance(newer, MediumStored) and newer.medium == "CPU"
        _, _, payload = socket.recv_multipart()
        assert msgspec.msgpack.decode(payload) == [2.0, [["AllBlocksCleared"]], 0]
        socket.close()
    finally:
        publisher.close()


def ask(dealer: zmq.Socket[Any], publisher: EventPublisher, start: int) -> list[list[bytes]]:
    """A whole replay, frames after the delimiter."""
    dealer.send_multipart((b"", start.to_bytes(8, "big")))
    got = []
    for _ in range(10_000):
        publisher.serve_replays()
        if not dealer.poll(2):
            continue
        delimiter, *frames = dealer.recv_multipart()
        assert delimiter == b""
        got.append(frames)
        if frames[-2] == END_OF_REPLAY:
            return got
    raise AssertionError("the replay does not end")


@pytest.mark.parametrize("event_format", ["map", "array"])
def test_a_replay_looks_like_what_was_missed(context: zmq.Context[Any], event_format: str) -> None:
    config = EventsConfig(
        endpoint="tcp://127.0.0.1:0", replay_endpoint="tcp://127.0.0.1:0", topic="kv", event_format=event_format
    )
    publisher = EventPublisher(config, 1, context=context)
    try:
        socket = subscriber(context, publisher)
        begun = publisher.sequence
        for number in range(700):
            publisher.publish([removed(number)], float(number))
        live = [socket.recv_multipart() for _ in range(700)]
        dealer = context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.RCVTIMEO, 5000)
        dealer.connect(publisher.replay_endpoint or "")
        got = ask(dealer, publisher, begun)
        topic = event_format == "map"
        assert got[:-1] == [frames if topic else frames[1:] for frames in live]
        assert got[-1] == ([b"", END_OF_REPLAY, b""] if topic else [END_OF_REPLAY, b""])
        assert ask(dealer, publisher, 1 << 40) == got[-1:]
        dealer.close()
        socket.close()
    finally:
        publisher.close()


def test_a_subscriber_that_does_not_read_costs_nobody_anything(context: zmq.Context[Any]) -> None:
    config = EventsConfig(endpoint="tcp://127.0.0.1:0", replay_endpoint="tcp://127.0.0.1:0", topic="kv", hwm=1000)
    publisher = EventPublisher(config, 1, context=context)
    try:
        slow = subscriber(context, publisher)
        quick = subscriber(context, publisher)
        heard = 0
        for number in range(3_000):
            publisher.send([], float(number))
            heard += bool(quick.poll(100)) and quick.recv_multipart() is not None
        assert heard == 3_000 and publisher.sequence >= 3_000
        # Nor does one that asks for all of it again and again and takes none.
        deaf = context.socket(zmq.DEALER)
        deaf.set_hwm(1)
        deaf.connect(publisher.replay_endpoint or "")
        for _ in range(5):
            deaf.send_multipart((b"", bytes(8)))
        wide = max(publisher.serve_replays() for _ in range(50))
        assert wide <= 5
        dealer = context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.RCVTIMEO, 5000)
        dealer.connect(publisher.replay_endpoint or "")
        assert len(ask(dealer, publisher, publisher.sequence - 5)) == 6
        deaf.close(linger=0)
        for _ in range(2 * REPLAY_PATIENCE):
            publisher.serve_replays()
        assert not publisher._replays, "a client that is gone is given up"
        for socket in (dealer, quick, slow):
            socket.close(linger=0)
    finally:
        publisher.close()


def test_missed_batches_are_replayed(context: zmq.Context[Any]) -> None:
    config = EventsConfig(endpoint="tcp://127.0.0.1:0", replay_endpoint="tcp://127.0.0.1:0", buffer_steps=4)
    publisher = EventPublisher(config, 1, context=context)
    try:
        for number in range(6):
            publisher.publish([removed(number)], float(number))
        socket = context.socket(zmq.REQ)
        socket.setsockopt(zmq.RCVTIMEO, 5000)
        socket.connect(publisher.replay_endpoint or "")
        assert publisher.serve_replays() == 0
        socket.send((4).to_bytes(8, "big"))
        while publisher.serve_replays() == 0:
            pass
        _, number, payload = socket.recv_multipart()
        assert int.from_bytes(number, "big") == 4
        assert msgspec.msgpack.decode(payload)[0] == 4.0
        socket.close()
        # A DEALER sees every reply and the end marker.
        dealer = context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.RCVTIMEO, 5000)
        dealer.connect(publisher.replay_endpoint or "")
        dealer.send_multipart((b"", (0).to_bytes(8, "big")))
        dealer.send_multipart((b"", b"nonsense!"))
        while publisher.serve_replays() == 0:
            pass
        numbers = []
        while True:
            _, _, number, _ = dealer.recv_multipart()
            if number == END_OF_REPLAY:
                break
            numbers.append(int.from_bytes(number, "big"))
        assert numbers == [2, 3, 4, 5]
        dealer.close()
    finally:
        publisher.close()


def test_the_configuration_is_checked() -> None:
    assert parse_config("") is None
    assert parse_config('{"enable_kv_cache_events": false}') is None
    assert parse_config('{"publisher": "null"}') is None
    config = parse_config('{"enable_kv_cache_events": true, "endpoint": "tcp://*:5557", "topic": "kv"}')
    assert config is not None and config.topic == "kv"
    assert parse_config('{"enable_kv_cache_events": true, "publisher": null}') is not None
    for text in (
        "{",
        '{"endpont": "x"}',
        '{"publisher": "nats"}',
        '{"block_hashes": "hex"}',
        '{"event_format": "xml"}',
        '{"hwm": "many"}',
        '{"buffer_steps": 0}',
    ):
        with pytest.raises(EventsConfigError, match="--kv-events-config"):
            parse_config(text)
    assert offset_port("tcp://*:5557", 3) == "tcp://*:5560"
    assert offset_port("inproc://kv", 1) == "inproc://kv_dp1"
    assert binds("tcp://*:1") and binds("ipc:///tmp/x") and not binds("tcp://router:5557")


def test_the_scheduler_says_what_its_device_tier_gains_and_loses() -> None:
    scheduler = Scheduler(SchedulerConfig(max_num_seqs=1, max_model_len=32, num_pages=4, page_size=4, kv_events=True))
    known: set[bytes] = set()
    for request_id, first in enumerate((0, 0, 50)):
        prompt = np.arange(first, first + 13, dtype=np.int32)
        scheduler.submit(RequestSpec(request_id, prompt, 1), 0.0)
        plan = scheduler.next_plan(0.0)
        assert plan is not None
        scheduler.advance(StepLanded(plan.step, np.zeros(1, np.int32)), 0.0)
        changes = scheduler.take_kv_events()
        assert {change[0] for change in changes} <= {DEVICE}
        new = [change for change in changes if change[1]]
        assert len(new) == (0 if request_id == 1 else 3)
        for _, kept, name, parent, raw in changes:
            if kept:
                assert name not in known and (parent is None or parent in known)
                known.add(name)
                assert len(np.frombuffer(raw, np.int32)) == 4
            else:
                known.remove(name)
    assert len(known) <= 4
    scheduler.flush_cache()
    for _, _, name, _, _ in scheduler.take_kv_events():
        known.remove(name)
    assert not known
