"""Publishes event batches on a ZeroMQ PUB socket and replays missed ones; both as subscribers of vLLM expect it.

A message is three frames: topic, sequence number (8 bytes, big-endian), msgpack batch. A client that sends an empty
frame and a sequence number to the replay socket gets every kept batch from there on, then one numbered -1.

Owns both sockets and the kept batches. Everything is non-blocking and runs in the caller's thread: a subscriber that
does not read loses batches and finds the gap in the numbers; a replay goes on where its client's queue was full.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec
import zmq

from tsd.cache.event_config import EventsConfig
from tsd.cache.events import AllBlocksCleared, Change, EventBatch, KvEvent, as_array, to_events

END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
REPLAY_BATCHES = 256
"""Replayed in one call at most."""
REPLAY_CLIENTS = 16
"""Replays in progress at most; further requests wait in the socket."""
REPLAY_PATIENCE = 600
"""Calls in which a client takes nothing before its replay is given up."""


class Replay:
    """A client's replay: the number of the next batch it gets, and for how many calls it has taken none."""

    def __init__(self, client: bytes, start: int) -> None:
        self.client = client
        self.next = start
        self.stuck = 0


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
        self._kept: deque[bytes] = deque(maxlen=config.buffer_steps)
        """Those numbered up to `sequence`."""
        self._replays: deque[Replay] = deque()
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
                # A full queue and a client that went away are told, not passed over in silence.
                self._replay.setsockopt(zmq.ROUTER_MANDATORY, 1)
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

    @property
    def replaying(self) -> bool:
        """Whether a replay has more to send to a client that takes it."""
        return any(replay.stuck == 0 for replay in self._replays)

    def publish(self, changes: Sequence[Change], now: float) -> int | None:
        """Sends what changed as one batch; its sequence number, or None when there was nothing to say."""
        if not changes:
            return None
        return self.send(to_events(changes, self.block_size, self.config.block_hashes == "bytes"), now)

    def clear(self, now: float) -> int:
        """Tells subscribers that nothing is cached: at start, and when the whole cache was flushed."""
        return self.send([AllBlocksCleared()], now)

    def send(self, events: Sequence[KvEvent], now: float) -> int:
        written = events if self.config.event_format == "map" else [as_array(event) for event in events]
        payload = self._encoder.encode(EventBatch(now, written, self.rank))
        sequence = self.sequence
        self.sequence += 1
        self._kept.append(payload)
        try:
            self._socket.send_multipart((self._topic, sequence.to_bytes(8, "big"), payload), zmq.NOBLOCK)
        except zmq.Again:
            self.dropped += 1
        return sequence

    def serve_replays(self) -> int:
        """Takes in waiting requests and goes on with the replays; how many ended. Never blocks.

        Malformed requests are ignored.
        """
        if self._replay is None:
            return 0
        while len(self._replays) < REPLAY_CLIENTS:
            try:
                frames = self._replay.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            if len(frames) == 3 and len(frames[2]) == 8:
                self._replays.append(Replay(frames[0], int.from_bytes(frames[2], "big")))
        ended = 0
        budget = REPLAY_BATCHES
        for _ in range(len(self._replays)):
            replay = self._replays.popleft()
            sent, over = self._go_on(self._replay, replay, budget)
            budget -= sent
            replay.stuck = 0 if sent else replay.stuck + 1
            over = over or replay.stuck > REPLAY_PATIENCE
            ended += over
            if not over:
                self._replays.append(replay)
        return ended

    def _go_on(self, socket: zmq.Socket[Any], replay: Replay, budget: int) -> tuple[int, bool]:
        """Sends a client at most `budget` batches: how many, and whether the replay is over."""
        sent = 0
        oldest = self.sequence - len(self._kept)
        replay.next = max(replay.next, oldest)
        try:
            while replay.next < self.sequence and sent < budget:
                payload = self._kept[replay.next - oldest]
                socket.send_multipart(self._reply(replay, replay.next.to_bytes(8, "big"), payload), zmq.NOBLOCK)
                replay.next += 1
                sent += 1
            if replay.next < self.sequence:
                return sent, False
            socket.send_multipart(self._reply(replay, END_OF_REPLAY, b""), zmq.NOBLOCK)
            return sent, True
        except zmq.Again:
            return sent, False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return sent, True

    def _reply(self, replay: Replay, number: bytes, payload: bytes) -> tuple[bytes, ...]:
        """The frames of a replayed batch: with the topic as published, which releases with array events left out."""
        if self.config.event_format == "array":
            return (replay.client, b"", number, payload)
        return (replay.client, b"", self._topic if payload else b"", number, payload)

    def close(self) -> None:
        self._socket.close(linger=0)
        if self._replay is not None:
            self._replay.close(linger=0)


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


def last_endpoint(socket: zmq.Socket[Any]) -> str:
    """The address a socket was bound or connected to last."""
    address = socket.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(address, bytes)
    return address.rstrip(b"\x00").decode()
