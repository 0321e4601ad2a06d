"""A whole engine on the GPU: in deterministic mode nothing that happens around a request changes its answer."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import transformers
from msgspec.structs import replace
from support.engine import GREEDY, EngineUnderTest, Stream, run_engine
from support.tiny import tiny_model

from tsd.engine.config import EngineConfig
from tsd.engine.protocol import SamplingParams

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

SIZES = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 256,
    "head_dim": 64,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "vocab_size": 2048,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}
SEEDED = SamplingParams(temperature=1.0, seed=7, top_k=50, top_p=0.95)


class Told(NamedTuple):
    """What a client sees of a request, whatever was done to it meanwhile."""

    tokens: list[int]
    logprobs: list[float]
    reason: str


def told(stream: Stream) -> Told:
    assert stream.finished is not None
    return Told(stream.tokens, [entry.logprob for entry in stream.logprobs], stream.finished.reason)


@pytest.fixture
def config(tmp_path: Path) -> EngineConfig:
    return EngineConfig(
        model=tiny_model(tmp_path / "m", **SIZES),
        load_format="dummy",
        device="cuda:0",
        deterministic=True,
        page_size=16,
        max_num_seqs=64,
        max_model_len=1024,
        max_total_tokens=65_536,
        chunked_prefill_size=512,
    )


def prompt(seed: int, length: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(3, 2040) for _ in range(length)]


def test_a_thousand_answers_are_one(config: EngineConfig) -> None:
    """One prompt 1,000 times, greedy and seeded, among random others that come, end and are aborted."""

    async def body(engine: EngineUnderTest) -> tuple[set[str], set[str]]:
        draw = random.Random(5)
        asked = prompt(1, 90)
        greedy: list[int] = []
        seeded: list[int] = []
        others: list[int] = []
        for turn in range(1000):
            few = replace(GREEDY if turn % 2 else SEEDED, logprobs=0 if turn % 10 < 2 else -1)
            (greedy if turn % 2 else seeded).append(engine.submit(asked, 24, few))
            for _ in range(draw.randrange(3)):
                params = SamplingParams(temperature=draw.choice((0.0, 0.8)), seed=draw.randrange(1000))
                others.append(engine.submit(prompt(draw.randrange(40), draw.randrange(1, 400)), 30, params))
            if others and draw.random() < 0.1:
                engine.abort(others[draw.randrange(len(others))])
            if draw.random() < 0.3:
                await asyncio.sleep(draw.random() * 0.01)
        answers = []
        for ids in (greedy, seeded):
            ends = [await engine.end(id_) for id_ in ids]
            chances = {str([entry.logprob for entry in end.logprobs]) for end in ends if end.logprobs}
            assert len(chances) == 1, f"{len(chances)} sets of log-probabilities"
            answers.append({str(end.tokens) for end in ends})
        for id_ in others:
            await engine.end(id_)
        await engine.settle()
        engine.check_nothing_held()
        assert engine.engine.parts.executor.statistics()["graphs"]["compilations_after_ready"] == 0
        return answers[0], answers[1]

    greedy, seeded = run_engine(config, body)
    assert len(greedy) == len(seeded) == 1
    assert greedy != seeded


async def sessions(engine: EngineUnderTest) -> list[Told]:
    """24 sessions on a common prefix, three turns each, all at once; what they were told, in order."""
    common = prompt(2, 200)

    async def one(i: int) -> list[Told]:
        history = [*common, *prompt(100 + i, 10 + 7 * i)]
        found = []
        for turn in range(3):
            params = replace(GREEDY if i % 2 else replace(SEEDED, seed=i), logprobs=0 if i % 3 == 0 else -1)
            stream = await engine.generate(history, 20, params)
            found.append(told(stream))
            history = [*history, *stream.tokens, *prompt(1000 * turn + i, 9)]
        return found

    ends = await asyncio.gather(*(one(i) for i in range(24)))
    await engine.settle()
    engine.check_nothing_held()
    return [entry for session in ends for entry in session]


@pytest.mark.parametrize(
    "changes",
    [
        {"prefix_cache": False},
        {"cuda_graphs": False},
        {"overlap": False},
        {"mixed_batch": False},
        {"chunked_prefill_size": 96},
        {"mixed_chunk_size": 80},
        {"max_num_seqs": 8},
        {"page_size": 64},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_settings_change_no_answer(config: EngineConfig, changes: dict[str, object]) -> None:
    assert run_engine(replace(config, **changes), sessions) == run_engine(config, sessions)


@pytest.mark.parametrize("host_gb, on_disk", [(0.0, False), (0.05, False), (0.001, True)], ids=["none", "host", "disk"])
def test_retractions_change_no_answer(config: EngineConfig, tmp_path: Path, host_gb: float, on_disk: bool) -> None:
    """A pool that is far too small, and victims taken beyond need: what is gone comes back by copy or is recomputed."""
    small = replace(config, max_total_tokens=2560, max_num_seqs=16, host_cache_gb=host_gb)
    if on_disk:
        small = replace(small, disk_cache_dir=str(tmp_path / "kv"), disk_cache_gb=0.2)

    async def body(engine: EngineUnderTest) -> tuple[list[Told], dict[str, int]]:
        engine.engine.scheduler.debug_retract(3)
        return await sessions(engine), dict(engine.engine.scheduler.counters)

    tight, counters = run_engine(small, body)
    assert counters["retractions"] >= 30, counters
    if host_gb:
        assert counters["hit_host"] + counters["hit_disk"] > 0, counters
    assert tight == run_engine(config, sessions)


def test_a_new_engine_finds_its_pages_on_disk(config: EngineConfig, tmp_path: Path) -> None:
    on_disk = replace(
        config, max_total_tokens=1024, host_cache_gb=0.01, disk_cache_dir=str(tmp_path / "kv"), disk_cache_gb=0.2
    )
    asked = prompt(3, 400)

    async def first(engine: EngineUnderTest) -> list[int]:
        tokens = (await engine.generate(asked, 8)).tokens
        for i in range(12):
            await engine.generate(prompt(80 + i, 600), 4)
        await engine.settle()
        return tokens

    async def second(engine: EngineUnderTest) -> list[int]:
        stream = await engine.generate(asked, 8)
        assert engine.engine.scheduler.counters["hit_disk"] > 0
        return stream.tokens

    assert run_engine(on_disk, first) == run_engine(on_disk, second)


def test_bfloat16_log_probabilities_are_those_of_transformers(tmp_path: Path) -> None:
    """Prompts within 5e-2, generated tokens within 6e-2, on the default (not deterministic) kernels."""
    sizes = {name: value for name, value in SIZES.items() if name not in ("architectures", "model_type", "torch_dtype")}
    torch.manual_seed(11)
    oracle = transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(
            **{**sizes, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 8},
            num_attention_heads=8,
            num_key_value_heads=2,
            tie_word_embeddings=False,
            bos_token_id=1,
            eos_token_id=2,
        )
    ).eval()
    with torch.no_grad():
        for name, parameter in oracle.named_parameters():
            if not name.endswith("norm.weight"):  # layers that add half as much as there is, logits of deviation 1
                scale = 1.0 if "head" in name else 0.5
                parameter.normal_(0.0, 1.0 if "embed" in name else scale * parameter.shape[-1] ** -0.5)
    oracle = oracle.to(torch.bfloat16)
    oracle.save_pretrained(tmp_path)
    oracle = oracle.to("cuda")
    prompts = [prompt(i, length) for i, length in enumerate((17, 64, 300, 700, 1, 129))]

    async def body(engine: EngineUnderTest) -> list[Stream]:
        params = replace(GREEDY, logprobs=0)
        ids = [engine.submit(asked, 40, params, prompt_logprobs=0) for asked in prompts]
        return [await engine.end(id_) for id_ in ids]

    served = EngineConfig(model=str(tmp_path), device="cuda:0", max_num_seqs=16, max_total_tokens=16_384)
    for asked, stream in zip(prompts, run_engine(served, body), strict=True):
        whole = torch.tensor([[*asked, *stream.tokens]], device="cuda")
        with torch.no_grad():
            chances = oracle(whole).logits[0].float().log_softmax(-1)
        wanted = chances[:-1].gather(1, whole[0, 1:, None]).squeeze(1).tolist()
        assert stream.prompt_logprobs is not None
        prefilled = [entry.logprob for entry in stream.prompt_logprobs if entry is not None]
        decoded = [entry.logprob for entry in stream.logprobs]
        assert len(prefilled) == len(asked) - 1 and len(decoded) == len(stream.tokens)
        errors = [abs(a - b) for a, b in zip([*prefilled, *decoded], wanted, strict=True)]
        assert max(errors[: len(prefilled)], default=0.0) < 5e-2
        assert max(errors[len(prefilled) :]) < 6e-2
