"""The lead's end of the channels to the other fronts: waits for them, tells them the state, asks them for figures."""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any

import msgspec

from tsd.api.errors import Unavailable
from tsd.api.fronts.group import LEAD, Group, lead_socket
from tsd.api.fronts.messages import Answer, Ask, Broken, Hello, Loaded, Prefixes, ToLead
from tsd.engine.transport import Channel

log = logging.getLogger("tsd.api.fronts")

BEAT_S = 1.0
ANSWER_S = 5.0


class _Member:
    def __init__(self, number: int, channel: Channel[ToLead]) -> None:
        self.number = number
        self.channel = channel
        self.is_loaded = False
        self.last_heard = monotonic()
        self.answers: dict[int, asyncio.Future[bytes]] = {}
        self.kept: dict[str, bytes] = {}
        """The last answer to each question."""


class Lead(Group):
    """`on_lost`: the server cannot go on, and why."""

    def __init__(self, folder: str, count: int, stall_s: float) -> None:
        super().__init__(folder, LEAD, count)
        self.on_lost: Callable[[str], None] = lambda why: None
        self._stall_s = stall_s
        self._members: dict[int, _Member] = {}
        self._of_channel: dict[Channel[ToLead], _Member] = {}
        self._serial = 0
        self._released = False
        self._serves = False
        self._closing = False
        self._server: asyncio.AbstractServer | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self) -> None:
        loop = asyncio.get_running_loop()
        decoder = msgspec.msgpack.Decoder(ToLead)
        self._server = await loop.create_unix_server(
            lambda: Channel[ToLead](decoder, self._message, self._closed), lead_socket(self.folder)
        )
        self._start(self._beat())

    def may_serve(self) -> bool:
        loaded = sum(member.is_loaded for member in self._members.values())
        if loaded == self.count - 1 and not self._released:
            self._released = True
            self._start(self._serve())
        return self._serves

    def fault(self) -> str:
        now = monotonic()
        for member in self._members.values():
            if member.is_loaded and now - member.last_heard > self._stall_s:
                return f"front {member.number} does not answer"
        return ""

    def tell_prefixes(self, engine: int, keys: list[int]) -> None:
        self._pass_on(Prefixes(engine, array("Q", keys).tobytes()))

    def _pass_on(self, message: Prefixes, source: _Member | None = None) -> None:
        for member in self._members.values():
            if member is not source:
                member.channel.send(message)

    async def ask_all(self, name: str, argument: bytes = b"", timeout_s: float | None = ANSWER_S) -> list[bytes]:
        """Each member's answer. Raises Unavailable when one is not there or does not answer in time."""
        if len(self._members) < self.count - 1:
            raise Unavailable("the server is still starting", retry_after=1)
        members = list(self._members.values())
        return list(await asyncio.gather(*(self._ask(member, name, argument, timeout_s) for member in members)))

    async def tell_all(self, name: str, argument: bytes = b"", timeout_s: float | None = ANSWER_S) -> None:
        """As ask_all, to whoever is there; who does not answer is let go."""
        members = list(self._of_channel.values())
        await asyncio.gather(*(self._ask(m, name, argument, timeout_s) for m in members), return_exceptions=True)

    async def figures(self, name: str) -> list[bytes]:
        """As ask_all, but a member that does not answer stands with what it said last: totals never fall."""
        members = list(self._members.values())
        found = await asyncio.gather(*(self._ask(m, name, b"", 2.0) for m in members), return_exceptions=True)
        for member, answer in zip(members, found, strict=True):
            if isinstance(answer, bytes):
                member.kept[name] = answer
            elif not isinstance(answer, Unavailable):
                raise answer
        return [member.kept[name] for member in members if name in member.kept]

    async def close(self) -> None:
        """Members end when their channel closes."""
        self._closing = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for member in self._members.values():
            member.channel.close()
        if self._server is not None:
            self._server.close()
        await super().close()

    async def _ask(self, member: _Member, name: str, argument: bytes, timeout_s: float | None) -> bytes:
        self._serial += 1
        serial = self._serial
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        member.answers[serial] = answer
        try:
            member.channel.send(Ask(serial, name, argument))
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError as error:
            raise Unavailable(f"front {member.number} does not answer") from error
        finally:
            member.answers.pop(serial, None)

    async def _serve(self) -> None:
        await self.ask_all("serve", timeout_s=None)
        self._serves = True
        self.on_change()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            for member in self._members.values():
                member.channel.send(Ask(0, "beat"))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _message(self, channel: Channel[ToLead], message: ToLead) -> None:
        if isinstance(message, Hello):
            self._members[message.front] = self._of_channel[channel] = _Member(message.front, channel)
            return
        member = self._of_channel[channel]
        member.last_heard = monotonic()
        if isinstance(message, Answer):
            answer = member.answers.get(message.serial)
            if answer is not None and not answer.done():
                answer.set_result(message.payload)
        elif isinstance(message, Loaded):
            member.is_loaded = True
            self.on_change()
        elif isinstance(message, Prefixes):
            self.on_prefixes(message.engine, memoryview(message.keys).cast("Q").tolist())
            self._pass_on(message, member)
        elif isinstance(message, Broken):
            self._lost(f"front {member.number}: {message.message}")

    def _closed(self, channel: Channel[ToLead], error: Exception | None) -> None:
        member = self._of_channel.pop(channel, None)
        if member is None:
            return
        for answer in member.answers.values():
            if not answer.done():
                answer.set_exception(Unavailable(f"front {member.number} is gone"))
        self._lost(f"front {member.number} is gone{': ' + str(error) if error else ''}")

    def _lost(self, why: str) -> None:
        if not self._closing:
            log.error("%s", why)
            self.on_lost(why)
