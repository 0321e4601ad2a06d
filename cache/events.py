"""Prefix-cache events for routers: what this engine's device tier gained and lost, on a ZeroMQ PUB socket.

The wire is the one routers know from vLLM: three frames (topic, sequence number as 8 bytes big-endian, msgpack batch);
a ROUTER socket replays kept batches from the sequence number a REQ client sends, then sends -1. A batch is
[time, [event, ...], rank], an event an array that begins with its name. Owns both sockets; knows no requests.
Everything is non-blocking and runs in the caller's thread: a slow subscriber loses batches and asks for a replay.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import zmq

END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
MEDIUM = "GPU"
MASK = (1 << 64) - 1

Change = tuple[bool, bytes, bytes | None, bytes]
"""(stored?, key, parent's key, token ids as raw int32), as `Scheduler.take_kv_events` gives them."""


class EventsConfigError(ValueError):
    """`--kv-events-config` is not JSON of the known fields."""


class EventsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON of `--kv-events-config`; fields as operators know them from vLLM."""

    enable_kv_cache_events: bool = True
    publisher: str = "zmq"
    """zmq, or null for none."""
    endpoint: str = "tcp://127.0.0.1:5557"
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    """Batches kept for replay."""
    hwm: int = 100_000
    max_queue_size: int = 100_000
    topic: str = ""
    block_hashes: str = "int"
    """int: the key's low 64 bits, as subscribers expect; bytes: all 16."""


class BlockStored(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Pages in chain order; `token_ids` are those of all of them."""

    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = MEDIUM


class BlockRemoved(msgspec.Struct, frozen=True, array_like=True, tag=True):
    block_hashes: list[int | bytes]
    medium: str | None = MEDIUM


class AllBlocksCleared(msgspec.Struct, frozen=True, array_like=True, tag=True):
    pass


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(msgspec.Struct, frozen=True, array_like=True):
    ts: float
    events: list[KvEvent]
    data_parallel_rank: int | None = None


def parse_config(text: str) -> EventsConfig | None:
    """The configuration, or None when it is empty or switches events off. Raises EventsConfigError."""
    if not text:
        return None
    try:
        config = msgspec.json.decode(text, type=EventsConfig)
    except msgspec.MsgspecError as fault:
        raise EventsConfigError(f"--kv-events-config: {fault}") from fault
    if config.publisher not in ("zmq", "null"):
        raise EventsConfigError(f"--kv-events-config: publisher is zmq or null, not {config.publisher}")
    if config.block_hashes not in ("int", "bytes"):
        raise EventsConfigError(f"--kv-events-config: block_hashes is int or bytes, not {config.block_hashes}")
    return config if config.enable_kv_cache_events and config.publisher == "zmq" else None


def offset_port(endpoint: str, rank: int) -> str:
    """Each rank its own endpoint: the port plus the rank, or a suffix where there is no port."""
    if rank == 0:
        return endpoint
    if endpoint.startswith("tcp://"):
        base, _, port = endpoint.rpartition(":")
        return f"{base}:{int(port) + rank}"
    return f"{endpoint}_dp{rank}"


def binds(endpoint: str) -> bool:
    """Local and wildcard addresses are bound; another host's is connected to."""
    return endpoint.startswith(("ipc://", "inproc://")) or any(
        part in endpoint for part in ("*", "127.0.0.1", "localhost", "[::")
    )


class EventPublisher:
    """Publishes batches of one engine. Raises zmq.ZMQError when an endpoint cannot be had."""

    def __init__(
        self, config: EventsConfig, block_size: int, rank: int = 0, context: zmq.Context[Any] | None = None
    ) -> None:
        self.config = config
        self.block_size = block_size
        self.rank = rank
        self.sequence = 0
        self.dropped = 0
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=config.buffer_steps)
        self._encoder = msgspec.msgpack.Encoder()
        self._topic = config.topic.encode()
        context = context or zmq.Context.instance()
        self._replay: zmq.Socket[Any] | None = None
        self._socket = context.socket(zmq.PUB)
        try:
            self._socket.set_hwm(config.hwm)
            self._attach(self._socket, config.endpoint)
            if config.replay_endpoint is not None:
                self._replay = context.socket(zmq.ROUTER)
                self._replay.bind(offset_port(config.replay_endpoint, rank))
        except zmq.ZMQError:
            self.close()
            raise

    def _attach(self, socket: zmq.Socket[Any], endpoint: str) -> None:
        address = offset_port(endpoint, self.rank)
        if binds(address):
            socket.bind(address)
        else:
            socket.connect(address)

    @property
    def endpoint(self) -> str:
        """The address subscribers connect to (with the real port when port 0 was asked for)."""
        return last_endpoint(self._socket)

    @property
    def replay_endpoint(self) -> str | None:
        return None if self._replay is None else last_endpoint(self._replay)

    def publish(self, changes: Sequence[Change], now: float) -> int | None:
        """Sends what changed as one batch; its sequence number, or None when there was nothing to say."""
        if not changes:
            return None
        return self.send(to_events(changes, self.block_size, self.config.block_hashes == "bytes"), now)

    def clear(self, now: float) -> int:
        """Tells subscribers that nothing is cached: at start, and after a new set of weights."""
        return self.send([AllBlocksCleared()], now)

    def send(self, events: list[KvEvent], now: float) -> int:
        payload = self._encoder.encode(EventBatch(now, events, self.rank))
        sequence = self.sequence
        self.sequence += 1
        self._kept.append((sequence, payload))
        try:
            self._socket.send_multipart((self._topic, sequence.to_bytes(8, "big"), payload), zmq.NOBLOCK)
        except zmq.Again:
            self.dropped += 1
        return sequence

    def serve_replays(self) -> int:
        """Answers waiting replay requests; how many. Malformed ones are ignored. Never blocks."""
        served = 0
        while self._replay is not None:
            try:
                frames = self._replay.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            if len(frames) != 3 or len(frames[2]) != 8:
                continue
            client, start = frames[0], int.from_bytes(frames[2], "big")
            try:
                for sequence, payload in self._kept:
                    if sequence >= start:
                        self._replay.send_multipart((client, b"", sequence.to_bytes(8, "big"), payload), zmq.NOBLOCK)
                self._replay.send_multipart((client, b"", END_OF_REPLAY, b""), zmq.NOBLOCK)
            except zmq.Again:
                self.dropped += 1
            served += 1
        return served

    def close(self) -> None:
        self._socket.close(linger=0)
        if self._replay is not None:
            self._replay.close(linger=0)


def last_endpoint(socket: zmq.Socket[Any]) -> str:
    """The address a socket was bound or connected to last."""
    address = socket.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(address, bytes)
    return address.rstrip(b"\x00").decode()


def to_events(changes: Iterable[Change], block_size: int, whole_keys: bool = False) -> list[KvEvent]:
    """Changes as events, neighbours joined: a chain of stored pages is one event, a run of removals another."""
    out: list[KvEvent] = []
    hashes: list[int | bytes] = []
    tokens: list[int] = []
    parent: bytes | None = None
    last: tuple[bool, bytes] | None = None

    def name(key: bytes) -> int | bytes:
        return key if whole_keys else int.from_bytes(key[:8], "little") & MASK

    def close() -> None:
        if last is not None and last[0]:
            out.append(BlockStored(hashes, None if parent is None else name(parent), tokens, block_size))
        elif last is not None:
            out.append(BlockRemoved(hashes))

    for stored, key, above, raw in changes:
        joins = last is not None and last[0] == stored and (not stored or above == last[1])
        if not joins:
            close()
            hashes, tokens, parent = [], [], above
        hashes.append(name(key))
        if stored:
            tokens.extend(memoryview(raw).cast("i"))
        last = (stored, key)
    close()
    return out
