"""The optional attention kernels with their real libraries, where they are installed: the reference, then an engine."""

from __future__ import annotations

import asyncio
import random
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from support.engine import GREEDY, EngineUnderTest, run_engine
from support.tiny import tiny_model

from tsd.engine.config import EngineConfig
from tsd.kernels.attention import reference
from tsd.kernels.spec import PrefillSite

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]

MODULES = {"fa3": "flash_attn_interface", "flashinfer": "flashinfer"}
BACKENDS = [
    pytest.param(name, marks=pytest.mark.skipif(find_spec(module) is None, reason=f"{module} is not installed"))
    for name, module in MODULES.items()
]
HEADS = (32, 8, 128)
CASES = {
    "decode": ([1] * 6, [1, 64, 65, 700, 1300, 33]),
    "prefill": ([512, 300, 2], [1024, 300, 130]),
    "mixed": ([1] * 5 + [37, 1, 224], [70, 300, 1, 64, 999, 37, 500, 1100]),
    "prefix hit": ([1, 230], [3400, 3300]),
}
TENSORS = ("positions", "query_start", "kv_lens", "page_table")


class Case(NamedTuple):
    batch: SimpleNamespace
    starts: np.ndarray
    lens: np.ndarray
    decoding: int
    tokens: int


def case_of(name: str, page_size: int, bucket: tuple[int, int] | None = None, width: int = 0) -> Case:
    """One of CASES on shuffled pages, padded to a bucket's (tokens, rows) as a graph would be."""
    counts, lens = CASES[name]
    rows, tokens = len(counts), sum(counts)
    most_tokens, most_rows = bucket or (tokens, rows)
    width = width or -(-max(lens) // page_size) + 1
    table = torch.zeros((most_rows, width), dtype=torch.int32)
    table[:rows] = torch.randperm(rows * width, dtype=torch.int32).view(rows, width)
    starts = np.array([0, *np.cumsum(counts)], np.int32)
    padded = np.concatenate((starts, np.full(most_rows - rows, tokens, np.int32)))
    positions = np.concatenate([np.arange(n - c, n) for c, n in zip(counts, lens, strict=True)])
    batch = SimpleNamespace(
        positions=torch.from_numpy(np.pad(positions, (0, most_tokens - tokens))).int().cuda(),
        kv_slots=torch.full((most_tokens,), -1, dtype=torch.int32, device="cuda"),
        query_start=torch.from_numpy(padded).cuda(),
        kv_lens=torch.tensor(lens + [0] * (most_rows - rows), dtype=torch.int32).cuda(),
        page_table=table.cuda(),
        num_rows=most_rows,
        num_decode=most_rows if bucket else next((i for i, count in enumerate(counts) if count > 1), rows),
        max_query_len=most_tokens if bucket else max(counts),
        page_size=page_size,
        plans=None,
    )
    leading = next((i for i, count in enumerate(counts) if count > 1), rows)
    return Case(batch, starts, np.array(lens, np.int32), leading, tokens)


def near(got: torch.Tensor, wanted: torch.Tensor, bound: float = 1e-2) -> None:
    error = (got.double() - wanted.double()).norm() / wanted.double().norm()
    assert error < bound, f"relative error {error:.2e}"


def plans_for(backend: str, batch: SimpleNamespace, tokens: int, dtype: torch.dtype) -> None:
    if backend == "flashinfer":
        from tsd.kernels.flashinfer.plans import Plans

        site = PrefillSite(str(dtype).removeprefix("torch."), *HEADS, batch.page_size)
        batch.plans = Plans(site, tokens, batch.num_rows, torch.device("cuda"))


def plan(case: Case, tokens: int, plans: object) -> None:
    if plans is not None:
        batch = case.batch
        width = batch.page_table.shape[1]
        plans.plan(tokens, batch.num_rows, case.starts, case.lens, case.decoding, width)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("page_size", [16, 64])
@pytest.mark.parametrize("backend", BACKENDS)
def test_answers_are_the_references(backend: str, page_size: int, name: str) -> None:
    torch.manual_seed(4)
    module = import_module(f"tsd.kernels.{backend}.attention")
    case = case_of(name, page_size)
    batch, num_kv = case.batch, HEADS[1]
    q = torch.randn(case.tokens, HEADS[0], 128, device="cuda").bfloat16()
    k, v = torch.randn(2, batch.page_table.numel(), page_size, num_kv, 128, device="cuda").bfloat16()
    if batch.max_query_len > 1:
        plans_for(backend, batch, case.tokens, q.dtype)
        plan(case, case.tokens, batch.plans)
    near(module.paged(q, k, v, batch, 0.09), reference.paged(q, k, v, batch, 0.09))


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_graph_serves_every_mix(backend: str) -> None:
    """Recorded for one mix, replayed for others: lengths and tables are read, plans made, before each replay."""
    torch.manual_seed(5)
    module = import_module(f"tsd.kernels.{backend}.attention")
    bucket = (1024, 16)
    cases = [case_of(name, 64, bucket, width=64) for name in ("mixed", "prefill", "prefix hit", "mixed")]
    live = SimpleNamespace(**vars(cases[0].batch))
    for name in TENSORS:
        setattr(live, name, getattr(live, name).clone())
    q = torch.randn(bucket[0], HEADS[0], 128, device="cuda").bfloat16()
    k, v = torch.randn(2, 16 * 64, 64, HEADS[1], 128, device="cuda").bfloat16()
    plans_for(backend, live, bucket[0], q.dtype)

    def step() -> torch.Tensor:
        for found in ("common", "longer"):  # what is kept on a batch is found anew for each step
            vars(live).pop(found, None)
        return module.paged(q, k, v, live, 0.09)

    plan(cases[0], bucket[0], live.plans)
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    held = torch.cuda.memory_allocated()
    for case in cases:
        for name in TENSORS:
            getattr(live, name).copy_(getattr(case.batch, name))
        plan(case, bucket[0], live.plans)
        graph.replay()
        near(out[: case.tokens], reference.paged(q, k, v, case.batch, 0.09)[: case.tokens])
        del case
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == held


class Told(NamedTuple):
    tokens: list[int]
    chances: list[float]
    of_prompt: list[float]


async def talk(engine: EngineUnderTest) -> list[Told]:
    """16 sessions on a common prefix, two turns each, at once: chunks, mixed steps, prefix hits."""
    draw = random.Random(3)
    common = [draw.randrange(3, 2040) for _ in range(300)]
    prompts = [common + [draw.randrange(3, 2040) for _ in range(10 + 31 * i)] for i in range(16)]

    async def one(prompt: list[int]) -> list[Told]:
        found = []
        for turn in (prompt, [*prompt, *range(100, 140)]):
            stream = await engine.generate(turn, 12, replace(GREEDY, logprobs=0), prompt_logprobs=0)
            assert stream.prompt_logprobs is not None
            of_prompt = [entry.logprob for entry in stream.prompt_logprobs if entry is not None]
            found.append(Told(stream.tokens, [entry.logprob for entry in stream.logprobs], of_prompt))
        return found

    told = [entry for ends in await asyncio.gather(*map(one, prompts)) for entry in ends]
    # Without log-probabilities of the prompt a prefix may be a hit.
    hits = await asyncio.gather(*(engine.generate(prompt, 12, replace(GREEDY, logprobs=0)) for prompt in prompts))
    told += [Told(s.tokens, [entry.logprob for entry in s.logprobs], []) for s in hits]
    await engine.settle()
    engine.check_nothing_held()
    assert engine.engine.parts.executor.statistics()["graphs"]["compilations_after_ready"] == 0
    return told


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_engine_answers_as_with_our_own(backend: str, tmp_path: Path) -> None:
    """Greedy tokens until two candidates are level; log-probabilities within what bfloat16 rounds."""
    sizes = {"hidden_size": 512, "head_dim": 128, "intermediate_size": 512, "num_hidden_layers": 4, "vocab_size": 2048}
    model = tiny_model(
        tmp_path / "m",
        architectures=["Qwen3ForCausalLM"],
        model_type="qwen3",
        torch_dtype="bfloat16",
        max_position_embeddings=2048,
        **sizes,
    )
    ours = EngineConfig(
        model=model,
        load_format="dummy",
        device="cuda:0",
        max_num_seqs=32,
        max_model_len=2048,
        max_total_tokens=65_536,
        chunked_prefill_size=512,
    )
    wanted = run_engine(ours, talk)
    got = run_engine(replace(ours, attention_backend=backend), talk)
    same = 0
    for a, b in zip(wanted, got, strict=True):
        np.testing.assert_allclose(a.of_prompt, b.of_prompt, atol=6e-2)
        level = next((i for i, (x, y) in enumerate(zip(a.tokens, b.tokens, strict=True)) if x != y), len(a.tokens) - 1)
        np.testing.assert_allclose(a.chances[: level + 1], b.chances[: level + 1], atol=6e-2)
        same += a.tokens == b.tokens
    assert same > len(wanted) // 2
