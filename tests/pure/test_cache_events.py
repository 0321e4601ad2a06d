"""KV events on the wire, read by a plain ZeroMQ subscriber and a plain msgpack decoder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq

from tsd.cache.events import (
    END_OF_REPLAY,
    EventPublisher,
    EventsConfig,
    EventsConfigError,
    binds,
    offset_port,
    parse_config,
    to_events,
)
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


def test_chains_and_removals_are_joined() -> None:
    events = to_events(
        [
            (True, key(1), None, ids(1, 2)),
            (True, key(2), key(1), ids(3, 4)),
            (True, key(9), key(1), ids(5, 6)),
            (False, key(2), None, b""),
            (False, key(9), None, b""),
            (True, key(2), key(1), ids(3, 4)),
        ],
        2,
    )
    assert msgspec.to_builtins(events) == [
        ["BlockStored", [1, 2], None, [1, 2, 3, 4], 2, None, "GPU"],
        ["BlockStored", [9], 1, [5, 6], 2, None, "GPU"],
        ["BlockRemoved", [2, 9], "GPU"],
        ["BlockStored", [2], 1, [3, 4], 2, None, "GPU"],
    ]
    whole = to_events([(True, key(1), key(7), ids(1, 2))], 2, whole_keys=True)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(whole))[0][1:3] == [[key(1)], key(7)]


def test_the_wire_is_topic_sequence_and_a_msgpack_array(context: zmq.Context[Any]) -> None:
    publisher = EventPublisher(EventsConfig(endpoint="tcp://127.0.0.1:0", topic="kv-events"), 2, context=context)
    try:
        socket = subscriber(context, publisher)
        sequence = publisher.publish([(True, key(5), None, ids(10, 11))], 12.5)
        assert publisher.publish([], 13.0) is None
        publisher.clear(14.0)
        topic, number, payload = socket.recv_multipart()
        assert topic == b"kv-events"
        assert int.from_bytes(number, "big") == sequence
        assert msgspec.msgpack.decode(payload) == [
            12.5,
            [["BlockStored", [5], None, [10, 11], 2, None, "GPU"]],
            0,
        ]
        _, number, payload = socket.recv_multipart()
        assert int.from_bytes(number, "big") == (sequence or 0) + 1
        assert msgspec.msgpack.decode(payload) == [14.0, [["AllBlocksCleared"]], 0]
        socket.close()
    finally:
        publisher.close()


def test_missed_batches_are_replayed(context: zmq.Context[Any]) -> None:
    config = EventsConfig(endpoint="tcp://127.0.0.1:0", replay_endpoint="tcp://127.0.0.1:0", buffer_steps=4)
    publisher = EventPublisher(config, 1, context=context)
    try:
        for number in range(6):
            publisher.publish([(False, key(number), None, b"")], float(number))
        socket = context.socket(zmq.REQ)
        socket.setsockopt(zmq.RCVTIMEO, 5000)
        socket.connect(publisher.replay_endpoint or "")
        assert publisher.serve_replays() == 0
        socket.send((4).to_bytes(8, "big"))
        while publisher.serve_replays() == 0:
            pass
        got = [socket.recv_multipart() for _ in range(1)]
        assert int.from_bytes(got[0][0], "big") == 4
        assert msgspec.msgpack.decode(got[0][1])[0] == 4.0
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
            _, number, _ = dealer.recv_multipart()
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
    for text in ("{", '{"endpont": "x"}', '{"publisher": "nats"}', '{"block_hashes": "hex"}', '{"hwm": "many"}'):
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
        stored = [change for change in changes if change[0]]
        assert len(stored) == (0 if request_id == 1 else 3)
        for kept, name, parent, raw in changes:
            if kept:
                assert name not in known and (parent is None or parent in known)
                known.add(name)
                assert len(np.frombuffer(raw, np.int32)) == 4
            else:
                known.remove(name)
    assert len(known) <= 4
    scheduler.flush_cache()
    for _, name, _, _ in scheduler.take_kv_events():
        known.remove(name)
    assert not known
