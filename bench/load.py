"""The load itself, inside one client process: sessions in, records out, with a watch on the process's own lag.

Owns closed-loop slots, open-loop departures, multi-turn histories, timeouts and the decision that a server is gone.
Knows nothing about other workers or reports: it is given sessions one at a time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from time import perf_counter
from typing import NamedTuple

import msgspec

from tsd.bench.http import BodySink, ConnectFailed, HttpError, Origin, Pool, render_request
from tsd.bench.plan import Plan, RequestShape, Session, Turn, ids_piece, message_piece, text_piece
from tsd.bench.record import RequestRecord
from tsd.bench.stream import StreamReader, error_text

_LAG_PERIOD_S = 0.010
_GIVE_UP_AFTER = 3
"""Failed connects in a row, with nothing received in between, after which the server counts as gone."""


async def tokenize(pool: Pool, model: str, text: str, api_key: str | None) -> list[int]:
    """Ids by POST /tokenize, with the text under the names that vLLM and llama.cpp know; empty when there are none."""
    body = msgspec.json.encode({"model": model, "prompt": text, "content": text, "add_special_tokens": False})
    try:
        response = await pool.fetch("POST", "/tokenize", body, api_key)
        value = msgspec.json.decode(response.body)
    except (HttpError, msgspec.DecodeError):
        return []
    tokens = value.get("tokens") if isinstance(value, dict) else None
    return tokens if isinstance(tokens, list) and all(isinstance(token, int) for token in tokens) else []


class Departure(NamedTuple):
    """A session to run; `due` is a `perf_counter` time (open loop) or None: as soon as there is a slot."""

    number: int
    session: Session
    due: float | None


class Load:
    """Runs sessions against one server. `emit` receives each record as it ends; `live` counts are for progress."""

    def __init__(self, plan: Plan, shape: RequestShape, worker: int, seed: int, emit: Callable[[RequestRecord], None]):
        self.plan, self.shape, self.worker = plan, shape, worker
        self.origin = Origin.parse(shape.url)
        self.pool = Pool(self.origin, insecure=shape.insecure)
        self.in_flight = 0
        self.chunks = 0
        self.max_lag_s = 0.0
        self.lags_over_5ms = 0
        self.server_gone = ""
        self._connect_failures = 0
        self._emit = emit
        self._random = random.Random(seed * 1009 + worker)
        self._head = shape.head()

    # -- pacing

    async def run_slot(self, departures: AsyncIterator[Departure]) -> None:
        """One slot of a closed loop: the next session when the one before has ended."""
        async for departure in departures:
            await self._session(departure)

    async def run_open(self, departures: list[Departure], slots: int | None) -> None:
        """Each session leaves when it is due; with `slots`, it first waits for one (that wait is not in its TTFT)."""
        limit = asyncio.Semaphore(slots) if slots else None

        async def leave(departure: Departure) -> None:
            if limit is None:
                await self._session(departure)
                return
            async with limit:
                await self._session(departure)

        async with asyncio.TaskGroup() as group:
            for departure in departures:
                delay = (departure.due or 0.0) - perf_counter()
                if delay > 0:
                    await asyncio.sleep(delay)
                group.create_task(leave(departure))

    async def watch_lag(self) -> None:
        """Measures how late this process's own loop wakes; runs until cancelled."""
        while True:
            before = perf_counter()
            await asyncio.sleep(_LAG_PERIOD_S)
            lag = perf_counter() - before - _LAG_PERIOD_S
            self.max_lag_s = max(self.max_lag_s, lag)
            self.lags_over_5ms += lag > 0.005

    # -- one session

    async def _session(self, departure: Departure) -> None:
        history: list[bytes] = []
        for number, turn in enumerate(departure.session.turns):
            if turn.wait_s > 0 and number:
                await asyncio.sleep(turn.wait_s)
            history.extend(self.plan.pieces[i] for i in turn.pieces)
            record = RequestRecord(session=departure.number, turn=number, worker=self.worker)
            record.requested_input, record.requested_output = turn.input_tokens, turn.max_tokens
            record.scheduled = departure.due if number == 0 else None
            reader = await self.request(record, turn, history)
            self._emit(record)
            if record.error:
                self._skip_rest(departure, number)
                return
            if number + 1 < len(departure.session.turns):
                history.append(await self._answer_piece(reader, record))

    def _skip_rest(self, departure: Departure, failed: int) -> None:
        for number in range(failed + 1, len(departure.session.turns)):
            record = RequestRecord(session=departure.number, turn=number, worker=self.worker)
            record.start = record.end = perf_counter()
            record.error = f"not sent: turn {failed + 1} of its session failed"
            self._emit(record)

    async def _answer_piece(self, reader: StreamReader, record: RequestRecord) -> bytes:
        """The server's answer as a piece of the next turn's prompt."""
        mode = self.shape.history
        text = "".join(reader.texts)
        if self.shape.kind == "messages":
            return message_piece("assistant", text)
        if self.shape.kind == "text":
            return text_piece(text)
        wanted = record.output_tokens
        ids = reader.token_ids
        if mode == "tokenize":
            ids = await tokenize(self.pool, self.shape.model, text, self.shape.api_key)
        if mode == "random" or not ids:
            ids = []
        low, high = self.shape.vocab_low, self.shape.vocab_high
        ids = ids[:wanted] + [self._random.randrange(low, high) for _ in range(wanted - len(ids))]
        return ids_piece(ids)

    # -- one request

    async def request(self, record: RequestRecord, turn: Turn, history: list[bytes]) -> StreamReader:
        """Send one turn behind `history`, fill `record`, and hand back what the stream held.

        Never raises for the server's faults: they are in `record.error`.
        """
        shape = self.shape
        keep = shape.keep_text or shape.history in ("text", "tokenize")
        reader = StreamReader(record, keep, completions=shape.kind != "messages")
        body = self._head + shape.joint.join(history) + shape.tail(turn.max_tokens)
        request = render_request(self.origin, "POST", shape.endpoint, body, shape.api_key)
        errors: list[bytes] = []
        record.start = perf_counter()
        if self.server_gone:
            record.end, record.error = record.start, f"not sent: {self.server_gone}"
            return reader

        def sink(status: int, data: bytes, now: float) -> None:
            # an answer that is not a stream is kept whole, for its message
            if status != 200 or errors or (reader.last_byte == 0.0 and data[:1] in (b"{", b"<")):
                errors.append(data)
                return
            before = len(record.chunk_times)
            reader.feed(data, now)
            self.chunks += len(record.chunk_times) - before

        self.in_flight += 1
        try:
            record.status = await self._watched(request, sink, reader, record)
            record.end = reader.last_byte or perf_counter()
            if record.status != 200:
                record.error = f"HTTP {record.status}: {error_text(b''.join(errors))}"
            elif errors:
                record.error = f"the answer is not a stream: {error_text(b''.join(errors))[:120]}"
            else:
                reader.finish()
            self._connect_failures = 0
        except ConnectFailed as error:
            self._connect_failures += 1
            record.error = str(error)
            if self._connect_failures >= _GIVE_UP_AFTER:
                self.server_gone = f"the server is gone ({error})"
        except HttpError as error:
            reader.finish()
            record.error = reader.failure or str(error)
        except TimeoutError as error:
            reader.finish()
            record.error = str(error)
        except asyncio.CancelledError:
            reader.finish()
            record.error, record.end = "stopped before it ended", perf_counter()
            self._emit(record)
            raise
        finally:
            self.in_flight -= 1
            record.end = record.end or perf_counter()
        return reader

    async def _watched(self, request: bytes, sink: BodySink, reader: StreamReader, record: RequestRecord) -> int:
        """The exchange's status, under two clocks: silence since the last byte, and the whole request."""
        shape = self.shape
        loop = asyncio.get_running_loop()
        task = loop.create_task(self.pool.exchange(request, sink))
        period = max(0.01, min(shape.idle_timeout_s, shape.request_timeout_s, 4.0) / 4)
        why = ""
        timer: asyncio.TimerHandle | None = None

        def check() -> None:
            nonlocal why, timer
            now = perf_counter()
            silent = now - max(reader.last_byte, record.start)
            if silent >= shape.idle_timeout_s:
                why = f"nothing received for {shape.idle_timeout_s:g} s"
            elif now - record.start >= shape.request_timeout_s:
                why = f"not finished after {shape.request_timeout_s:g} s"
            else:
                timer = loop.call_later(period, check)
                return
            task.cancel()

        timer = loop.call_later(period, check)
        try:
            return (await task).status
        except asyncio.CancelledError:
            if why:
                raise TimeoutError(why) from None
            task.cancel()
            raise
        finally:
            timer.cancel()
