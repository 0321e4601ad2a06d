"""The requests that live in this engine, and the front each belongs to.

A front numbers its requests; here they are known as `channel number << 40 | front's number`, so that the ids of a
whole step are translated by one mask. Owns that mapping and the messages that go back. Knows no policy.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from typing import Any

import numpy as np

from tsd.engine.bytes_of import masked_ids, raw_tokens
from tsd.engine.executor.base import StepResult
from tsd.engine.grammars import GrammarIntake
from tsd.engine.live import LiveRequest
from tsd.engine.names import RequestNames
from tsd.engine.protocol import Abort, Finished, Started, StepOutput, Submit, TokenLogprobs
from tsd.engine.transport import Channel
from tsd.scheduler.core import Scheduler
from tsd.scheduler.types import Admission, FinishedRequest, Refused, RequestSpec, StepOutcome

ID_BITS = 40
ID_MASK = (1 << ID_BITS) - 1
log = logging.getLogger("tsd.engine")


class LiveRequests:
    def __init__(
        self, scheduler: Scheduler, vocab_size: int, grammars: GrammarIntake, kick: Callable[[], None]
    ) -> None:
        self._scheduler = scheduler
        self._grammars = grammars
        self._kick = kick
        self._compiling: set[int] = set()
        """Requests that wait for their grammar; the scheduler does not know them yet."""
        self._vocab_size = vocab_size
        self._live: dict[int, LiveRequest] = {}
        self._channels: dict[int, Channel[Any]] = {}
        self._numbers: dict[Channel[Any], int] = {}
        self._next_number = 0
        self._started: list[tuple[int, Started]] = []
        self.names = RequestNames()
        self.draining = False

    def __len__(self) -> int:
        return len(self._live)

    def find(self, key: int) -> LiveRequest | None:
        return self._live.get(key)

    @property
    def channels(self) -> list[Channel[Any]]:
        return list(self._channels.values())

    def open(self, channel: Channel[Any]) -> None:
        number = self._next_number
        self._next_number += 1
        self._channels[number] = channel
        self._numbers[channel] = number

    def closed(self, channel: Channel[Any], now: float) -> None:
        """The front is gone: nobody reads its streams, so they end."""
        number = self._numbers.pop(channel, None)
        if number is None:
            return
        del self._channels[number]
        for key in [key for key in self._live if key >> ID_BITS == number]:
            if key in self._compiling:
                self._compiling.discard(key)
                del self._live[key]
            else:
                self._scheduler.abort(key, now)

    def submit(self, channel: Channel[Any], message: Submit, now: float) -> None:
        key = self._numbers[channel] << ID_BITS | message.id
        refusal = self._refusal(key, message)
        if refusal is not None:
            self._refuse(channel, message, *refusal)
            return
        live = LiveRequest(key, message, now, _seed(message))
        if message.prompt_logprobs >= 0:
            live.prompt_logprobs = [None]
        self._live[key] = live
        self.names.learn(key, message.name)
        if message.grammar is None:
            self._schedule(channel, live, now)
            return
        self._compiling.add(key)

        def compiled(make_row: Callable[[], Any] | None, fault: str) -> None:
            if key not in self._compiling:
                return
            self._compiling.discard(key)
            if make_row is None:
                del self._live[key]
                self._refuse(channel, message, "invalid_grammar", fault)
                return
            live.make_grammar_row = make_row
            self._schedule(channel, live, now)
            self._kick()

        self._grammars.compile(message.grammar, compiled)

    def _schedule(self, channel: Channel[Any], live: LiveRequest, now: float) -> None:
        """Hands the request to the scheduler. `now` is when it arrived: a grammar's compilation counts as queueing."""
        message = live.submit
        spec = RequestSpec(
            request_id=live.id,
            prompt=np.frombuffer(message.prompt, dtype="<i4").astype(np.int32, copy=False),
            max_tokens=message.max_tokens,
            min_tokens=message.min_tokens,
            stop_token_ids=message.stop_token_ids,
            priority=message.priority,
            # Cached prefixes have no logits: a request for prompt log-probabilities must match none.
            salt=self._salt(message, live.id),
            deadline=None if message.deadline_s is None else now + message.deadline_s,
            payload=live,
        )
        try:
            self._scheduler.submit(spec, now)
        except Refused as error:
            del self._live[live.id]
            self._refuse(channel, message, error.code, error.message)

    @staticmethod
    def _refuse(channel: Channel[Any], message: Submit, code: str, text: str) -> None:
        end = Finished(message.id, "refused", prompt_tokens=len(message.prompt) // 4, message=text, code=code)
        channel.send(StepOutput(0, finished=[end]))

    def _refusal(self, key: int, message: Submit) -> tuple[str, str] | None:
        """What the front should have caught, checked again where a mistake would reach the device."""
        if key in self._live:
            return "duplicate_id", f"request {message.id} is already running"
        if self.draining:
            return "draining", "the server is shutting down"
        if not message.prompt or len(message.prompt) % 4 or message.max_tokens < 1:
            return "invalid", "a prompt of at least one token and max_tokens of at least 1 are needed"
        ids = np.frombuffer(message.prompt, dtype="<i4")
        if int(ids.min()) < 0 or int(ids.max()) >= self._vocab_size:
            return "invalid", f"token ids must be between 0 and {self._vocab_size - 1}"
        return None

    @staticmethod
    def _salt(message: Submit, key: int) -> bytes:
        if message.prompt_logprobs >= 0:
            return b"no reuse" + key.to_bytes(8, "little")
        return (message.cache_salt or "").encode()

    def abort(self, channel: Channel[Any], message: Abort, now: float) -> None:
        """Unknown ids are let pass: the request may have ended while the message was on its way."""
        key = self._numbers[channel] << ID_BITS | message.id
        if key in self._compiling:
            self._compiling.discard(key)
            live = self._live.pop(key)
            end = Finished(message.id, message.reason, prompt_tokens=len(live.submit.prompt) // 4)
            channel.send(StepOutput(0, finished=[end]))
            return
        self._scheduler.abort(key, now, message.reason)

    def admitted(self, admissions: list[Admission], now: float) -> None:
        for admission in admissions:
            live = admission.payload
            assert isinstance(live, LiveRequest)
            if not live.started:
                live.started = True
                started = Started(
                    live.id & ID_MASK, admission.num_prompt, admission.num_cached, max(0.0, now - live.arrived)
                )
                self._started.append((live.id >> ID_BITS, started))
            elif live.prompt_logprobs is not None:
                # Back from a retraction: what follows the pages it found again is computed, and told, once more.
                del live.prompt_logprobs[1 + admission.num_cached :]

    def publish(self, outcome: StepOutcome, result: StepResult, finished: list[FinishedRequest]) -> None:
        """One message for each front that the step concerns."""
        prompt_logprobs = self._collect_prompt_logprobs(result, outcome) if result.prompt_logprobs else {}
        if self._next_number == 1 and self._channels:
            # One front, ever. One that is left alone must still not be told of the requests of those that went.
            ((number, channel),) = self._channels.items()
            message = StepOutput(
                outcome.step, ids=masked_ids(outcome.request_ids, ID_MASK), tokens=raw_tokens(outcome.tokens)
            )
            if result.logprobs:
                message.logprobs = self._logprobs(result, outcome.rows)
            if prompt_logprobs:
                message.prompt_logprobs = {key & ID_MASK: entries for key, entries in prompt_logprobs.items()}
            if finished or self._started:
                self._finish(message, number, finished)
            channel.send(message)
            return
        owners = outcome.request_ids >> ID_BITS
        for number, channel in self._channels.items():
            mine = owners == number
            message = StepOutput(
                outcome.step,
                ids=masked_ids(outcome.request_ids[mine], ID_MASK),
                tokens=raw_tokens(outcome.tokens[mine]),
                logprobs=self._logprobs(result, outcome.rows[mine]),
                prompt_logprobs={k & ID_MASK: v for k, v in prompt_logprobs.items() if k >> ID_BITS == number},
            )
            self._finish(message, number, [end for end in finished if end.request_id >> ID_BITS == number])
            if message.ids or message.finished or message.started:
                channel.send(message)
        self._forget([end for end in finished if end.request_id >> ID_BITS not in self._channels])

    def publish_finished(self, finished: list[FinishedRequest], step: int) -> None:
        """Ends that no step's tokens carry: aborts, deadlines, faults; and starts that would otherwise wait."""
        if not finished and not self._started:
            return
        for number, channel in self._channels.items():
            message = StepOutput(step)
            self._finish(message, number, [end for end in finished if end.request_id >> ID_BITS == number])
            if message.finished or message.started:
                channel.send(message)
        self._forget([end for end in finished if end.request_id >> ID_BITS not in self._channels])
        self._started = [pair for pair in self._started if pair[0] in self._channels]

    def _finish(self, message: StepOutput, number: int, finished: list[FinishedRequest]) -> None:
        if self._started:
            message.started = [started for owner, started in self._started if owner == number]
            self._started = [pair for pair in self._started if pair[0] != number]
        if finished:
            message.finished = [self._finished(end) for end in finished]
            self._forget(finished)

    def _forget(self, finished: list[FinishedRequest]) -> None:
        for end in finished:
            self._live.pop(end.request_id, None)

    @staticmethod
    def _finished(end: FinishedRequest) -> Finished:
        return Finished(
            id=end.request_id & ID_MASK,
            reason=end.reason,
            prompt_tokens=end.num_prompt,
            cached_tokens=end.num_cached,
            output_tokens=end.num_output,
            stop_token=end.stop_token,
            queue_s=end.queue_s,
            prefill_s=end.prefill_s,
            decode_s=end.decode_s,
            retractions=end.retractions,
            retracted_s=end.retracted_s,
            message=end.message,
        )

    @staticmethod
    def _logprobs(result: StepResult, rows: np.ndarray) -> dict[int, TokenLogprobs]:
        if not result.logprobs:
            return {}
        return {i: result.logprobs[row] for i, row in enumerate(rows.tolist()) if row in result.logprobs}

    def _collect_prompt_logprobs(
        self, result: StepResult, outcome: StepOutcome
    ) -> dict[int, list[TokenLogprobs | None]]:
        """Chunks of a prompt gather until the request's first token goes out."""
        for key, entries in result.prompt_logprobs.items():
            live = self._live.get(key)
            if live is not None and live.prompt_logprobs is not None:
                live.prompt_logprobs.extend(entries)
        complete: dict[int, list[TokenLogprobs | None]] = {}
        for key in outcome.request_ids.tolist():
            live = self._live.get(key)
            if live is not None and live.prompt_logprobs is not None:
                complete[key] = live.prompt_logprobs
                live.prompt_logprobs = None
        return complete


def _seed(message: Submit) -> int:
    """The request's own, or one drawn now, so that re-entry after a retraction goes on with the same stream."""
    return secrets.randbits(63) if message.sampling.seed is None else message.sampling.seed
