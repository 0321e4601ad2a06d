"""The GPU computes what the CPU computes: greedy tokens in float32 are equal, half precision stays near."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from support.paged import PagedRunner
from support.tiny_models import SIZES, VARIANTS, make

from tsd.engine.model_config import config_from_json, load_model_config
from tsd.engine.models import Decoder, build_model
from tsd.engine.weights import open_weights
from tsd.engine.weights.staging import CHUNK, let_go, to_device

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

GREEDY = 64


def load(folder: Path, device: str, dtype: str = "float32") -> Decoder:
    config = load_model_config(folder)
    return build_model(config, dtype=dtype, device=device, weights=open_weights(folder, config=config))


def prompts() -> list[list[int]]:
    draw = random.Random(3)
    return [[draw.randrange(SIZES["vocab_size"]) for _ in range(length)] for length in (37, 1, 9, 64)]


@pytest.mark.parametrize("chunk", [0, 7], ids=["whole", "chunked"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_float32_greedy_tokens_equal_the_cpus(variant: str, chunk: int, tmp_path: Path) -> None:
    make(variant, tmp_path, head_dim=64)
    tokens = []
    for device in ("cpu", "cuda"):
        runner = PagedRunner(load(tmp_path, device), page_size=16)
        tokens.append(runner.greedy([runner.add(prompt) for prompt in prompts()], GREEDY, chunk))
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("variant", ["llama", "qwen2", "qwen3-tied"])
def test_bfloat16_log_probabilities_stay_near(variant: str, tmp_path: Path) -> None:
    make(variant, tmp_path, torch.bfloat16, head_dim=64)
    found = []
    for device, dtype in (("cpu", "float32"), ("cuda", "bfloat16")):
        runner = PagedRunner(load(tmp_path, device, dtype), page_size=16)
        logits = runner.prefill([runner.add(prompt) for prompt in prompts()])
        found.append(logits.log_softmax(-1))
    error = (found[0] - found[1]).square().mean().sqrt() / found[0].std()
    assert error < 0.05


@pytest.mark.parametrize("extra", [-2, 0, 6, 3 * CHUNK])
def test_weights_come_whole_through_the_pinned_buffers(extra: int) -> None:
    source = torch.randint(-(2**15), 2**15 - 1, ((CHUNK + extra) // 2,), dtype=torch.int16).view(torch.bfloat16)
    outs = [torch.zeros(len(source), dtype=torch.bfloat16, device="cuda") for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda out: to_device(source, out), outs))
    let_go()
    assert all(torch.equal(out.cpu().view(torch.int16), source.view(torch.int16)) for out in outs)


def test_small_dummy_weights_are_the_same_on_every_device() -> None:
    config = config_from_json({**SIZES, "architectures": ["Qwen3ForCausalLM"], "head_dim": 64})
    tokens = []
    for device in ("cpu", "cuda"):
        weights = open_weights("", "dummy", config=config, seed=5)
        runner = PagedRunner(build_model(config, dtype="float32", device=device, weights=weights), page_size=16)
        tokens.append(runner.greedy([runner.add(prompt) for prompt in prompts()], 16))
    assert tokens[0] == tokens[1]
