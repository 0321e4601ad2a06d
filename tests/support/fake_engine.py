"""A scripted engine: the real protocol over a real Unix socket, deterministic tokens, and faults on demand."""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tsd.engine import transport
from tsd.engine.protocol import (
    Abort,
    Command,
    Fatal,
    Finished,
    Heartbeat,
    Progress,
    Ready,
    Reply,
    Started,
    StepOutput,
    Submit,
    ToEngine,
    TokenLogprobs,
)

Script = Callable[[Submit, array], list[int]]


def counting(submit: Submit, prompt: array) -> list[int]:
    """A stream that depends on the prompt and the seed only."""
    start = sum(prompt) + (submit.sampling.seed or 0)
    return [(start + 7 * index) % 1000 + 20 for index in range(submit.max_tokens)]


@dataclass
class Running:
    submit: Submit
    prompt: array
    tokens: list[int]
    sent: int = 0
    started: bool = False


@dataclass
class FakeEngine:
    path: str
    vocab_size: int = 1100
    max_model_len: int = 512
    eos: tuple[int, ...] = ()
    script: Script = counting
    step_s: float = 0.0
    tokens_per_step: int = 1
    die_after_steps: int = -1
    fatal_after_steps: int = -1
    refuse: tuple[str, str] | None = None
    hold: bool = False
    """Takes requests and never starts them."""
    ready_after_s: float = 0.0
    logprob: float = -0.5
    seen: list[ToEngine] = field(default_factory=list)
    aborted: list[int] = field(default_factory=list)
    running: dict[int, Running] = field(default_factory=dict)
    """By the first front's ids; those of front n are n << 40 higher."""
    step: int = 0

    async def start(self) -> None:
        self._channels: list[transport.Channel[Any] | None] = []
        self._wake = asyncio.Event()
        self._server = await transport.listen(self.path, self._on_message, self._on_close, self._on_open)
        self._tasks = [asyncio.create_task(self._loop()), asyncio.create_task(self._beat())]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._server.close()
        for channel in self._open:
            channel.close()
        await asyncio.sleep(0)

    def ready(self) -> Ready:
        return Ready(
            0, "fake", "FakeForCausalLM", self.vocab_size, self.max_model_len, 16, 100, 64, 1600, "cpu", "float32",
            0.1, {"weights": 0.1}, self.eos, {"grammar": "scripted"},
        )  # fmt: skip

    def _on_open(self, channel: transport.Channel[Any]) -> None:
        self._channels.append(channel)
        channel.send(Progress("weights", "reading", 0.01, 0.5))
        if self.ready_after_s:
            asyncio.get_running_loop().call_later(self.ready_after_s, channel.send, self.ready())
        else:
            channel.send(self.ready())

    def _on_close(self, channel: transport.Channel[Any], error: Exception | None) -> None:
        self._channels[self._channels.index(channel)] = None

    @property
    def _open(self) -> list[transport.Channel[Any]]:
        return [channel for channel in self._channels if channel is not None]

    def _on_message(self, channel: transport.Channel[Any], message: ToEngine) -> None:
        self.seen.append(message)
        if isinstance(message, Submit):
            if self.refuse is not None:
                code, text = self.refuse
                channel.send(StepOutput(self.step, finished=[Finished(message.id, "refused", message=text, code=code)]))
                return
            prompt = array("i")
            prompt.frombytes(message.prompt)
            tokens = self.script(message, prompt)[: message.max_tokens]
            self.running[self._key(channel, message.id)] = Running(message, prompt, tokens)
            self._wake.set()
        elif isinstance(message, Abort):
            key = self._key(channel, message.id)
            row = self.running.pop(key, None)
            self.aborted.append(key)
            if row is not None:
                done = Finished(message.id, message.reason, len(row.prompt), 0, row.sent)
                channel.send(StepOutput(self.step, finished=[done]))
        elif isinstance(message, Command):
            self._on_command(channel, message)

    def _key(self, channel: transport.Channel[Any], request_id: int) -> int:
        return self._channels.index(channel) << 40 | request_id

    def _on_command(self, channel: transport.Channel[Any], command: Command) -> None:
        if command.name == "snapshot":
            payload: Any = {
                "engine": 0,
                "step": self.step,
                "running": len(self.running),
                "requests": [
                    [r.submit.name, "decode", 0.0, len(r.prompt), 0, r.sent, 0.0, 0, 0, ""]
                    for r in self.running.values()
                ],
                "events": [[0.0, "finish", 1, "stop", ""]],
            }
        elif command.name == "requests":
            payload = {"id": command.argument, "state": "decode", "timeline": []}
        elif command.name == "nonsense":
            channel.send(Reply(command.serial, False, b"no such command"))
            return
        else:
            payload = {"done": command.name, "argument": command.argument}
        channel.send(Reply(command.serial, True, json.dumps(payload).encode()))

    async def _beat(self) -> None:
        while True:
            for channel in self._open:
                stats = {"kv_cache_usage_perc": 0.25, "prefix_cache_queries": 10.0, "prefix_cache_hits": 4.0}
                stats |= {"iteration_tokens_total/1": 2.0, "iteration_tokens_total/+Inf": 1.0}
                stats |= {"iteration_tokens_total/sum": 9.0, "num_retractions": 1.0}
                channel.send(Heartbeat(self.step, len(self.running), 0, 0, stats))
            await asyncio.sleep(0.2)

    async def _loop(self) -> None:
        while True:
            if not self.running or self.hold:
                self._wake.clear()
                await self._wake.wait()
                continue
            await asyncio.sleep(self.step_s)
            self.step += bool(self._open and self.running)
            for number, channel in enumerate(self._channels):
                if channel is not None and any(key >> 40 == number for key in self.running):
                    channel.send(self._next(number))
            if self.step == self.die_after_steps:
                for channel in self._open:
                    channel.close()
                return
            if self.step == self.fatal_after_steps:
                for channel in self._open:
                    channel.send(Fatal("scripted fault"))
                return

    def _next(self, front: int) -> StepOutput:
        ids, tokens = array("q"), array("i")
        output = StepOutput(self.step)
        for key, row in list(self.running.items()):
            request_id = key & (1 << 40) - 1
            if key >> 40 != front:
                continue
            if not row.started:
                row.started = True
                output.started.append(Started(request_id, len(row.prompt), 3 if len(row.prompt) > 3 else 0, 0.001))
                if row.submit.prompt_logprobs >= 0:
                    entries: list[TokenLogprobs | None] = [None]
                    entries += [self._logprobs(t, row.submit.prompt_logprobs) for t in row.prompt[1:]]
                    output.prompt_logprobs[request_id] = entries
            for _ in range(self.tokens_per_step):
                if self._emit(request_id, row, ids, tokens, output):
                    del self.running[key]
                    break
        output.ids, output.tokens = ids.tobytes(), tokens.tobytes()
        return output

    def _emit(self, request_id: int, row: Running, ids: array, tokens: array, output: StepOutput) -> bool:
        """True when the row is over."""
        token = row.tokens[row.sent]
        row.sent += 1
        if row.submit.sampling.logprobs >= 0:
            output.logprobs[len(ids)] = self._logprobs(token, row.submit.sampling.logprobs)
        ids.append(request_id)
        tokens.append(token)
        stop = token if token in row.submit.stop_token_ids and row.sent > row.submit.min_tokens else -1
        if stop < 0 and row.sent < len(row.tokens):
            return False
        reason = "stop" if stop >= 0 or len(row.tokens) < row.submit.max_tokens else "length"
        output.finished.append(
            Finished(
                request_id,
                reason,
                len(row.prompt),
                3 if len(row.prompt) > 3 else 0,
                row.sent,
                stop,
                0.001,
                0.002,
                0.003,
            )
        )
        return True

    def _logprobs(self, token: int, top: int) -> TokenLogprobs:
        others = tuple((token + k) % self.vocab_size for k in range(top))
        return TokenLogprobs(self.logprob, 0, others, tuple(self.logprob - k for k in range(top)))
