"""Frames of msgpack over a Unix stream socket: a 4-byte little-endian length, then the message.

Owns the two ends of a channel and nothing else: what messages mean is `protocol`'s. A malformed or oversized
frame closes the channel with an error; it is never skipped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from tsd.engine.protocol import ToEngine, ToFront

MAX_FRAME = 256 * 1024 * 1024
_PREFIX = 4

In = TypeVar("In")


class ChannelError(ConnectionError):
    """The peer sent what is not a frame of the protocol, or went away."""


class Channel(asyncio.Protocol, Generic[In]):
    """One end of a connection. `on_message` runs for each decoded message, `on_close` exactly once."""

    def __init__(
        self,
        decoder: msgspec.msgpack.Decoder[Any],
        on_message: Callable[[Channel[In], In], None],
        on_close: Callable[[Channel[In], Exception | None], None],
        on_open: Callable[[Channel[In]], None] | None = None,
    ) -> None:
        self._decoder = decoder
        self._on_message = on_message
        self._on_close = on_close
        self._on_open = on_open
        self._encoder = msgspec.msgpack.Encoder()
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._error: Exception | None = None

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, message: object) -> None:
        """Queues one message; what is sent to a closed channel is dropped, since `on_close` has told the owner."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        frame = bytearray(_PREFIX)
        self._encoder.encode_into(message, frame, _PREFIX)
        frame[:_PREFIX] = (len(frame) - _PREFIX).to_bytes(_PREFIX, "little")
        transport.write(frame)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]
        if self._on_open is not None:
            self._on_open(self)

    def data_received(self, data: bytes) -> None:
        buffer = self._received
        buffer += data
        start, end = 0, len(buffer)
        try:
            while end - start >= _PREFIX:
                size = int.from_bytes(buffer[start : start + _PREFIX], "little")
                if size > MAX_FRAME:
                    raise ChannelError(f"frame of {size} bytes is over the limit of {MAX_FRAME}")
                if end - start - _PREFIX < size:
                    break
                start += _PREFIX
                message = self._decoder.decode(memoryview(buffer)[start : start + size])
                start += size
                self._on_message(self, message)
        except (msgspec.DecodeError, ChannelError) as error:
            self._error = error
            assert self._transport is not None
            self._transport.abort()
            return
        if start:
            del buffer[:start]

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._on_close(self, self._error or error)


async def connect(
    path: str,
    on_message: Callable[[Channel[ToFront], ToFront], None],
    on_close: Callable[[Channel[ToFront], Exception | None], None],
) -> Channel[ToFront]:
    """The front's end. Raises OSError where no engine listens on `path`."""
    loop = asyncio.get_running_loop()
    decoder = msgspec.msgpack.Decoder(ToFront)
    _, channel = await loop.create_unix_connection(lambda: Channel[ToFront](decoder, on_message, on_close), path)
    return channel


async def listen(
    path: str,
    on_message: Callable[[Channel[ToEngine], ToEngine], None],
    on_close: Callable[[Channel[ToEngine], Exception | None], None],
    on_open: Callable[[Channel[ToEngine]], None],
) -> asyncio.AbstractServer:
    """The engine's end: any number of fronts may connect."""
    loop = asyncio.get_running_loop()
    decoder = msgspec.msgpack.Decoder(ToEngine)
    return await loop.create_unix_server(lambda: Channel[ToEngine](decoder, on_message, on_close, on_open), path)
