"""A member's end of the channel to the lead: says when it is loaded, does as it is told, ends when the lead ends."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable
from time import monotonic

import msgspec

from tsd.api.fronts.group import LEAD, Group, lead_socket
from tsd.api.fronts.messages import Answer, Ask, Broken, Hello, Loaded, Prefixes, ToMember
from tsd.engine.transport import Channel

RETRY_S = 0.02

Act = Callable[[bytes], Awaitable[bytes]]


class Member(Group):
    """`acts` answer the lead's questions by name."""

    def __init__(self, folder: str, number: int, count: int, stall_s: float) -> None:
        super().__init__(folder, number, count)
        self.acts: dict[str, Act] = {"serve": self._serve, "beat": self._beat}
        self.ended = asyncio.Event()
        """The lead is gone, or done."""
        self._stall_s = stall_s
        self._serves = False
        self._told_loaded = False
        self._last_heard = 0.0
        self._channel: Channel[ToMember] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def connect(self) -> None:
        """Waits for the lead to listen; the process ends with it anyway."""
        loop = asyncio.get_running_loop()
        decoder = msgspec.msgpack.Decoder(ToMember)
        while self._channel is None:
            try:
                _, self._channel = await loop.create_unix_connection(
                    lambda: Channel[ToMember](decoder, self._message, self._closed), lead_socket(self.folder)
                )
            except OSError:
                await asyncio.sleep(RETRY_S)
        self._last_heard = monotonic()
        self._channel.send(Hello(self.number))
        if self._told_loaded:
            self._channel.send(Loaded())

    def may_serve(self) -> bool:
        if not self._told_loaded:
            self._told_loaded = True
            self._send(Loaded())
        return self._serves

    def tell_prefixes(self, engine: int, keys: list[int]) -> None:
        self._send(Prefixes(engine, array("Q", keys).tobytes()))

    def fault(self) -> str:
        silent = self._serves and monotonic() - self._last_heard > self._stall_s
        return f"front {LEAD} does not answer" if silent else ""

    def tell_broken(self, why: str) -> None:
        self._send(Broken(why))

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._channel is not None:
            self._channel.close()
        await super().close()

    def _send(self, message: object) -> None:
        if self._channel is not None:
            self._channel.send(message)

    def _message(self, channel: Channel[ToMember], message: ToMember) -> None:
        self._last_heard = monotonic()
        if isinstance(message, Prefixes):
            self.on_prefixes(message.engine, memoryview(message.keys).cast("Q").tolist())
            return
        task = asyncio.create_task(self._answer(channel, message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, channel: Channel[ToMember], ask: Ask) -> None:
        channel.send(Answer(ask.serial, await self.acts[ask.name](ask.argument)))

    def _closed(self, channel: Channel[ToMember], error: Exception | None) -> None:
        self.ended.set()

    async def _serve(self, _: bytes) -> bytes:
        self._serves = True
        self.on_change()
        return b""

    async def _beat(self, _: bytes) -> bytes:
        return b""
