"""A whole engine on the CPU, without HTTP: what a request gets must not depend on who runs beside it."""

from __future__ import annotations

import asyncio
import json
import random
import time
from array import array
from collections.abc import Awaitable
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.engine import GREEDY, EngineUnderTest, Stream, run_engine
from support.tiny import tiny_model

from tsd.engine.config import EngineConfig
from tsd.engine.protocol import SamplingParams, StepOutput, Submit

PROMPT = [3 + (i * 37) % 200 for i in range(50)]


@pytest.fixture
def config(tmp_path: Path) -> EngineConfig:
    return EngineConfig(
        model=tiny_model(tmp_path / "m"),
        load_format="dummy",
        page_size=16,
        max_num_seqs=8,
        max_total_tokens=2048,
        chunked_prefill_size=32,
        deterministic=True,
    )


def prompt(seed: int, length: int) -> list[int]:
    return [random.Random(seed).randrange(3, 250) for _ in range(length)]


def test_a_request_ends_once_with_its_tokens(config: EngineConfig) -> None:
    async def body(engine: EngineUnderTest) -> None:
        stream = await engine.generate(PROMPT, 20)
        end = stream.finished
        assert end is not None and end.reason == "length"
        assert len(stream.tokens) == end.output_tokens == 20
        assert end.prompt_tokens == 50 and end.cached_tokens == 0
        assert stream.started is not None
        await engine.settle()
        engine.check_nothing_held()

    run_engine(config, body)


@pytest.mark.parametrize("length", [31, 32, 33, 47, 48, 49])
def test_cold_and_prefix_hit_agree(config: EngineConfig, length: int) -> None:
    async def body(engine: EngineUnderTest) -> None:
        text = prompt(length, length)
        cold = await engine.generate(text, 12)
        hit = await engine.generate(text, 12)
        assert cold.tokens == hit.tokens
        assert hit.finished is not None
        # Whole pages are found again, and at least one token is always computed anew.
        assert hit.finished.cached_tokens == (length - 1) // 16 * 16

    run_engine(config, body)


SAMPLED = [
    GREEDY,
    SamplingParams(temperature=1.0, seed=11),
    SamplingParams(temperature=0.7, top_k=5, seed=12),
    SamplingParams(temperature=1.3, top_p=0.8, seed=13),
    SamplingParams(temperature=1.0, min_p=0.1, seed=14),
    SamplingParams(temperature=0.9, seed=15, frequency_penalty=0.8, presence_penalty=0.3),
    SamplingParams(temperature=0.9, seed=16, repetition_penalty=1.4),
    SamplingParams(temperature=0.0, logit_bias={7: 4.0}, logprobs=3),
]


def test_a_row_is_the_same_alone_and_in_any_company(config: EngineConfig) -> None:
    async def body(engine: EngineUnderTest) -> None:
        texts = [prompt(100 + i, 20 + 7 * i) for i in range(len(SAMPLED))]
        alone = [(await engine.generate(text, 24, params)).tokens for text, params in zip(texts, SAMPLED, strict=True)]
        ids = [engine.submit(text, 24, params) for text, params in zip(texts, SAMPLED, strict=True)]
        together = [(await engine.end(id_)).tokens for id_ in ids]
        assert together == alone
        assert len({tuple(tokens) for tokens in alone}) == len(alone)

    run_engine(config, body)


def test_overlap_changes_nothing(config: EngineConfig) -> None:
    async def body(engine: EngineUnderTest) -> list[list[int]]:
        ids = [engine.submit(prompt(i, 30 + i), 16, params) for i, params in enumerate(SAMPLED)]
        return [(await engine.end(id_)).tokens for id_ in ids]

    assert run_engine(config, body) == run_engine(replace(config, overlap=False), body)


def test_retraction_changes_nothing(config: EngineConfig) -> None:
    async def body(engine: EngineUnderTest) -> tuple[list[object], int]:
        ids = [engine.submit(prompt(i, 40), 60, params) for i, params in enumerate(SAMPLED)]
        ends = [await engine.end(id_) for id_ in ids]
        await engine.settle()
        engine.check_nothing_held()
        retractions = sum(end.finished.retractions for end in ends if end.finished)
        told = [(end.tokens, len(end.logprobs), end.finished.output_tokens if end.finished else None) for end in ends]
        return told, retractions

    roomy, none = run_engine(config, body)
    tight, some = run_engine(replace(config, max_total_tokens=320, max_model_len=256), body)
    assert none == 0 and some > 0
    assert tight == roomy


def test_logprobs_come_one_for_one(config: EngineConfig) -> None:
    async def body(engine: EngineUnderTest) -> None:
        stream = await engine.generate(PROMPT, 10, SamplingParams(temperature=0.0, logprobs=4), prompt_logprobs=2)
        assert len(stream.logprobs) == len(stream.tokens) == 10
        for token, entry in zip(stream.tokens, stream.logprobs, strict=True):
            assert entry.rank == 0 and entry.top_ids[0] == token and len(entry.top_ids) == 4
            assert entry.logprob == pytest.approx(entry.top_logprobs[0])
        scored = stream.prompt_logprobs
        assert scored is not None and scored[0] is None
        assert len(scored) == len(PROMPT)
        assert all(entry is not None and entry.logprob <= 0 and len(entry.top_ids) == 2 for entry in scored[1:])

    run_engine(config, body)


@pytest.mark.parametrize("others", [(1,), (2,), (3,), (2, 1), (1, 2), (3, 1), (2, 2)])
def test_scored_prompts_keep_their_logits_beside_others(config: EngineConfig, others: tuple[int, ...]) -> None:
    """However many logits a step wants, as many as it has tokens too: each request has what it has alone."""

    async def body(engine: EngineUnderTest) -> None:
        prompts = [PROMPT[:20], *([9 + size, *PROMPT][:size] for size in others)]

        def ask(i: int) -> Awaitable[Stream]:
            return engine.generate(prompts[i], 4, replace(GREEDY, logprobs=0), prompt_logprobs=0 if i == 0 else -1)

        def chances(stream: Stream) -> list[float]:
            entries = [*stream.logprobs, *(stream.prompt_logprobs or [])]
            return [entry.logprob for entry in entries if entry is not None]

        alone = [await ask(i) for i in range(len(prompts))]
        assert len(chances(alone[0])) == 4 + 19
        for turn in (range(len(prompts)), range(len(prompts) - 1, -1, -1)):
            for i, stream in zip(turn, await asyncio.gather(*map(ask, turn)), strict=True):
                assert stream.tokens == alone[i].tokens
                assert chances(stream) == pytest.approx(chances(alone[i]), abs=1e-4)

    run_engine(replace(config, prefix_cache=False), body)


def test_stop_tokens_and_min_tokens(config: EngineConfig) -> None:
    async def body(engine: EngineUnderTest) -> None:
        free = (await engine.generate(PROMPT, 30)).tokens
        stop = free[4]
        first = free.index(stop)
        stopped = await engine.generate(PROMPT, 30, stop_token_ids=(stop,))
        assert stopped.tokens == free[: first + 1]
        assert stopped.finished is not None
        assert (stopped.finished.reason, stopped.finished.stop_token) == ("stop", stop)
        late = await engine.generate(PROMPT, 30, stop_token_ids=(stop,), min_tokens=20)
        assert len(late.tokens) >= 20 and stop not in late.tokens[:20]

    run_engine(config, body)


def test_aborts_at_every_moment_leave_nothing(config: EngineConfig) -> None:
    async def body(engine: EngineUnderTest) -> None:
        chance = random.Random(5)
        for round_ in range(40):
            ids = [engine.submit(prompt(round_ * 10 + i, chance.randrange(1, 120)), 40) for i in range(12)]
            for id_ in ids:
                for _ in range(chance.randrange(3)):
                    await asyncio.sleep(0)
                if chance.random() < 0.3:
                    await asyncio.sleep(0.002)
                engine.abort(id_)
                engine.abort(id_)
            for id_ in ids:
                end = (await engine.end(id_)).finished
                assert end is not None and end.reason in ("abort", "length", "stop")
        await engine.settle()
        engine.check_nothing_held()

    run_engine(config, body)


class OtherFront:
    """A second channel to the engine, whose requests have the same numbers as the first one's."""

    def __init__(self, engine: EngineUnderTest) -> None:
        self.tokens: list[int] = []
        self._engine = engine.engine
        self._engine.requests.open(self)  # type: ignore[arg-type]

    def submit(self, number: int, tokens: list[int], max_tokens: int) -> None:
        ids = array("i", tokens).tobytes()
        self._engine.submit(self, Submit(number, ids, max_tokens, GREEDY))  # type: ignore[arg-type]

    def send(self, message: StepOutput) -> None:
        assert set(memoryview(message.ids).cast("q").tolist()) <= {1, 2, 3}
        self.tokens += memoryview(message.tokens).cast("i").tolist()

    def leave(self) -> None:
        self._engine.front_closed(self)  # type: ignore[arg-type]


@pytest.mark.parametrize("when", [0, 1, 7])
def test_a_front_that_dies_leaves_the_other_its_own(config: EngineConfig, when: int) -> None:
    """Neither its tokens nor its ends reach the requests of the same number."""

    async def body(engine: EngineUnderTest) -> None:
        alone = [await engine.generate(prompt(n, 20), 30) for n in (1, 2, 3)]
        other = OtherFront(engine)
        engine._next = 1
        mine = [engine.submit(prompt(n, 20), 30) for n in (1, 2, 3)]
        for number in mine:
            other.submit(number, prompt(number + 10, 20), 30)
        while len(other.tokens) < 3 * when:
            await engine.streams[1].moved.wait()
            engine.streams[1].moved.clear()
        other.leave()
        time.sleep(0.05)  # noqa: ASYNC251 (the step in flight lands before the loop turns)
        engine.engine.loop._landed()
        together = [await engine.end(number) for number in mine]
        assert [stream.tokens for stream in together] == [stream.tokens for stream in alone]
        assert {stream.finished.reason for stream in together if stream.finished} == {"length"}
        assert len(other.tokens) < 90
        await engine.settle()
        engine.check_nothing_held()

    run_engine(config, body)


@pytest.mark.parametrize(
    ("tokens", "max_tokens", "code"),
    [
        ([], 4, "invalid"),
        ([256], 4, "invalid"),
        ([-1], 4, "invalid"),
        ([3] * 512, 4, "context_length"),
        ([3], 0, "invalid"),
    ],
)
def test_what_cannot_run_is_refused(config: EngineConfig, tokens: list[int], max_tokens: int, code: str) -> None:
    async def body(engine: EngineUnderTest) -> None:
        end = (await engine.generate(tokens, max_tokens)).finished
        assert end is not None and (end.reason, end.code) == ("refused", code) and end.message
        assert (await engine.generate(PROMPT, 3)).finished is not None
        engine.check_nothing_held()

    run_engine(config, body)


def test_a_deadline_ends_a_request(config: EngineConfig) -> None:
    async def body(engine: EngineUnderTest) -> None:
        stream = await engine.generate(PROMPT, 400, deadline_s=0.05)
        assert stream.finished is not None and stream.finished.reason == "deadline"
        await engine.settle()
        engine.check_nothing_held()

    run_engine(config, body)


def test_a_fault_of_the_device_ends_the_engine_once(config: EngineConfig) -> None:
    async def body(engine: EngineUnderTest) -> None:
        def broken(*_: object) -> None:
            raise RuntimeError("the device is on fire")

        engine.engine.parts.executor.model.forward = broken  # type: ignore[attr-defined]
        with pytest.raises(RuntimeError, match="on fire"):
            await engine.generate(PROMPT, 4)
        assert len(engine.faults) == 1

    run_engine(config, body)


def test_logits_that_are_not_finite_are_an_error(config: EngineConfig) -> None:
    async def body(engine: EngineUnderTest) -> None:
        model = engine.engine.parts.executor.model  # type: ignore[attr-defined]
        real = model.forward
        model.forward = lambda batch, cache: real(batch, cache) * float("nan")
        end = (await engine.generate(PROMPT, 4)).finished
        assert end is not None and end.reason == "error"
        model.forward = real
        assert (await engine.generate(PROMPT, 4)).tokens
        await engine.settle()
        engine.check_nothing_held()

    run_engine(config, body)


def test_commands_answer_and_bad_ones_are_refused(config: EngineConfig) -> None:
    from tsd.engine.protocol import Command

    async def body(engine: EngineUnderTest) -> None:
        order = engine.engine.command
        for name in ("pause", "resume", "flush_cache", "snapshot", "kernels"):
            assert order(Command(1, name)).ok, name
        assert not order(Command(2, "explode")).ok
        assert not order(Command(3, "abort", "x")).ok
        assert not order(Command(4, "abort", "99")).ok
        assert not order(Command(5, "log_level", "loud")).ok
        order(Command(6, "pause"))
        id_ = engine.submit(PROMPT, 4)
        await asyncio.sleep(0.05)
        assert not engine.streams[id_].tokens
        order(Command(7, "resume"))
        assert len((await engine.end(id_)).tokens) == 4

    run_engine(config, body)


def test_the_trace_is_json_and_has_both_tracks(config: EngineConfig, tmp_path: Path) -> None:
    async def body(engine: EngineUnderTest) -> None:
        await engine.generate(PROMPT, 5)
        await engine.settle()

    file = tmp_path / "trace.json"
    run_engine(replace(config, trace=str(file)), body)
    events = [event for event in json.loads(file.read_text()) if event["ph"] == "X"]
    steps = [event for event in events if event["tid"] == 2]
    assert {event["name"] for event in events if event["tid"] == 1} >= {"plan", "launch", "advance", "publish"}
    assert sum(event["args"]["tokens"] for event in steps) >= len(PROMPT) + 4
    assert all(event["dur"] > 0 for event in steps)
