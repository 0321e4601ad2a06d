"""The front's end of the channel to one engine: life, requests in flight, step fan-out, commands.

Knows no HTTP. The step message is walked once; each sequence it touches advances in place, then every stream that
got something is flushed with one write.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic
from typing import Any

from tsd.api.errors import ApiError, EngineFault, InvalidRequest, Unavailable
from tsd.api.options import EngineEndpoint
from tsd.api.sequence import Sequence
from tsd.api.streaming import Outbox
from tsd.engine import transport
from tsd.engine.protocol import (
    Abort,
    Command,
    Fatal,
    Heartbeat,
    Progress,
    Ready,
    Reply,
    StepOutput,
    ToFront,
    Vocabulary,
)

log = logging.getLogger("tsd.api.engines")

RETRY_S = 0.02


class EngineClient:
    """States: connecting → starting → ready → dead. `on_change` hears of each."""

    def __init__(self, endpoint: EngineEndpoint, outbox: Outbox, on_change: Callable[[EngineClient], None]) -> None:
        self.endpoint = endpoint
        self.engine = endpoint.engine
        self.state = "connecting"
        self.ready: Ready | None = None
        self.fault = ""
        self.phases: list[Progress] = []
        self.beat: Heartbeat | None = None
        self.last_heard = 0.0
        self.last_step = 0
        self.sequences: dict[int, Sequence] = {}
        self.queued_tokens = 0
        """Prompt tokens of sequences that have not started."""
        self.waiting = 0
        self.on_progress: Callable[[int, Progress], None] | None = None
        self._outbox = outbox
        self._on_change = on_change
        self._channel: transport.Channel[ToFront] | None = None
        self._next_id = 0
        self._serial = 0
        self._knows_vocabulary = False
        self._replies: dict[int, asyncio.Future[Reply]] = {}
        self._loop = asyncio.get_running_loop()

    async def connect(self, alive: Callable[[int], bool]) -> None:
        """Waits for the engine to listen; gives up when `alive` says that its process is gone."""
        while self.state == "connecting":
            try:
                self._channel = await transport.connect(self.endpoint.path, self._on_message, self._on_close)
            except OSError:
                if not alive(self.engine):
                    self._die("the engine process ended while starting")
                    return
                await asyncio.sleep(RETRY_S)
            else:
                self.last_heard = monotonic()
                if self.state == "connecting":
                    self._set_state("starting")

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()

    def is_stuck(self, stall_s: float) -> bool:
        return self.state == "ready" and monotonic() - self.last_heard > stall_s

    @property
    def load(self) -> int:
        return len(self.sequences)

    def submit(self, sequence: Sequence) -> None:
        if self.state != "ready":
            raise Unavailable("the engine is not ready", retry_after=1)
        assert self._channel is not None
        self._next_id += 1
        sequence.id = sequence.submit.id = self._next_id
        sequence.submit.name = sequence.job.public_id
        sequence.engine = self
        sequence.arrived = monotonic()
        self.sequences[sequence.id] = sequence
        self.waiting += 1
        self.queued_tokens += len(sequence.prompt)
        self._channel.send(sequence.submit)

    def tell_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Once a connection."""
        if not self._knows_vocabulary and self._channel is not None:
            self._knows_vocabulary = True
            self._channel.send(vocabulary)

    def forget(self, sequence: Sequence, reason: str) -> bool:
        """Ends a sequence from our side: what the engine still says of it is dropped. False if it was not here."""
        if self.sequences.pop(sequence.id, None) is None:
            return False
        self._left(sequence)
        if self._channel is not None:
            self._channel.send(Abort(sequence.id, reason))
        return True

    def abort(self, sequence: Sequence) -> None:
        """Asks the engine to end it; the terminal event arrives as for any other."""
        if self._channel is not None:
            self._channel.send(Abort(sequence.id, "abort"))

    async def command(self, name: str, argument: str = "", timeout_s: float = 5.0) -> bytes:
        """Returns the reply's payload. Raises Unavailable (no engine, no answer) or InvalidRequest (it refused)."""
        if self._channel is None or not self._channel.is_open:
            raise Unavailable("the engine is not connected")
        self._serial += 1
        serial = self._serial
        future: asyncio.Future[Reply] = self._loop.create_future()
        self._replies[serial] = future
        try:
            self._channel.send(Command(serial, name, argument))
            async with asyncio.timeout(timeout_s):
                reply = await future
        except TimeoutError as error:
            raise Unavailable(f"the engine did not answer {name} in {timeout_s:g} s") from error
        finally:
            self._replies.pop(serial, None)
        if not reply.ok:
            raise InvalidRequest(reply.payload.decode("utf-8", "replace") or f"{name} was refused")
        return bytes(reply.payload)

    # What the engine says.

    def _on_message(self, channel: transport.Channel[Any], message: ToFront) -> None:
        self.last_heard = monotonic()
        if type(message) is StepOutput:
            self._on_step(message)
        elif isinstance(message, Heartbeat):
            self.beat = message
        elif isinstance(message, Reply):
            future = self._replies.get(message.serial)
            if future is not None and not future.done():
                future.set_result(message)
        elif isinstance(message, Progress):
            self.phases.append(message)
            if self.on_progress is not None:
                self.on_progress(self.engine, message)
        elif isinstance(message, Ready):
            self.ready = message
            self._set_state("ready")
        elif isinstance(message, Fatal):
            self._die(message.message or "the engine failed")

    def _on_step(self, step: StepOutput) -> None:
        now = monotonic()
        self.last_step = step.step
        sequences = self.sequences
        for started in step.started:
            sequence = sequences.get(started.id)
            if sequence is not None:
                self._left(sequence)
                sequence.on_started(started, now)
        for request_id, entries in step.prompt_logprobs.items():
            sequence = sequences.get(request_id)
            if sequence is not None:
                sequence.prompt_logprobs = entries
        touched = self._deal(step)
        finished = {event.id: event for event in step.finished} if step.finished else None
        for sequence in touched:
            event = None
            if finished is not None:
                event = finished.pop(sequence.id, None)
                if event is not None:
                    self._remove(sequence)
            self._advance(sequence, event, now)
        if finished:
            for event in finished.values():
                sequence = sequences.get(event.id)
                if sequence is not None:
                    self._remove(sequence)
                    self._advance(sequence, event, now)
        self._outbox.flush_soon()

    def _deal(self, step: StepOutput) -> list[Sequence]:
        """Hands each token to its sequence; returns the sequences that got one, in order of their first."""
        ids = memoryview(step.ids).cast("q").tolist()
        tokens = memoryview(step.tokens).cast("i").tolist()
        logprobs = step.logprobs
        sequences = self.sequences
        touched: list[Sequence] = []
        for position, (request_id, token) in enumerate(zip(ids, tokens, strict=True)):
            sequence = sequences.get(request_id)
            if sequence is None:
                continue
            if sequence.fresh is None:
                sequence.fresh = [token]
                touched.append(sequence)
            else:
                sequence.fresh.append(token)
            if logprobs and position in logprobs:
                if sequence.fresh_logprobs is None:
                    sequence.fresh_logprobs = []
                sequence.fresh_logprobs.append(logprobs[position])
        return touched

    def _advance(self, sequence: Sequence, event: Any, now: float) -> None:
        try:
            sequence.advance(event, now)
        except Exception:
            # A fault in one request's text processing ends that request only.
            log.exception("request %s failed in the front", sequence.job.public_id)
            self.forget(sequence, "abort")
            sequence.fail(EngineFault("the server failed to process the output", code="internal"))

    def _remove(self, sequence: Sequence) -> None:
        del self.sequences[sequence.id]
        self._left(sequence)

    def _left(self, sequence: Sequence) -> None:
        """It waits no longer."""
        if sequence.started == 0.0:
            sequence.started = monotonic()
            self.waiting -= 1
            self.queued_tokens -= len(sequence.prompt)

    def _on_close(self, channel: transport.Channel[Any], error: Exception | None) -> None:
        self._die(f"the connection to the engine closed{': ' + str(error) if error else ''}")

    def _die(self, fault: str) -> None:
        if self.state == "dead":
            return
        self.fault = fault
        self.fail_all(_died())
        for future in self._replies.values():
            if not future.done():
                future.set_result(Reply(0, False, b"the engine died"))
        if self._channel is not None:
            self._channel.close()
        self._set_state("dead")

    def fail_all(self, error: ApiError) -> None:
        """Ends what is in flight here with an error; the engine is not asked."""
        doomed, self.sequences = list(self.sequences.values()), {}
        for sequence in doomed:
            sequence.fail(error)
        self._outbox.flush()

    def _set_state(self, state: str) -> None:
        self.state = state
        self._on_change(self)


def _died() -> ApiError:
    return EngineFault("the engine died while it worked on this request", code="engine_died")
