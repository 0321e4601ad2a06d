"""Each architecture computes what transformers computes, however its tokens are batched, chunked and cached."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.paged import PagedRunner
from support.tiny_models import SIZES, VARIANTS, greedy_disagreement, make, oracle_logits

from tsd.engine.layers import Site
from tsd.engine.model_config import load_model_config
from tsd.engine.models import Decoder, build_model
from tsd.engine.weights import open_weights
from tsd.kernels.spec import Selection, TraitValue

LENGTHS = (37, 1, 9, 64, 22)
GREEDY = 64
FLOAT32_TOLERANCE = 2e-5
"""On logits of size around 5; what is left is the order of additions."""


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def load(folder: Path, dtype: str = "float32", **options: object) -> Decoder:
    config = load_model_config(folder)
    source = open_weights(folder, config=config)
    model = build_model(config, dtype=dtype, weights=source, **options)  # type: ignore[arg-type]
    source.close()
    return model


def prompts(seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(SIZES["vocab_size"]) for _ in range(length)] for length in LENGTHS]


@pytest.mark.parametrize("variant", VARIANTS)
def test_prefill_logits_match_transformers(variant: str, tmp_path: Path) -> None:
    oracle = make(variant, tmp_path)
    runner = PagedRunner(load(tmp_path))
    rows = [runner.add(prompt) for prompt in prompts()]
    logits = runner.prefill(rows)
    for row, prompt in zip(logits, prompts(), strict=True):
        expected = oracle_logits(oracle, prompt)[-1]
        assert expected.abs().max() > 0.5
        torch.testing.assert_close(row, expected, rtol=FLOAT32_TOLERANCE, atol=FLOAT32_TOLERANCE)


@pytest.mark.parametrize("chunk", [0, 7], ids=["whole", "chunked"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_greedy_tokens_match_transformers_in_a_mixed_batch(variant: str, chunk: int, tmp_path: Path) -> None:
    oracle = make(variant, tmp_path)
    runner = PagedRunner(load(tmp_path))
    rows = [runner.add(prompt) for prompt in prompts()]
    for prompt, new in zip(prompts(), runner.greedy(rows, GREEDY, chunk), strict=True):
        assert len(new) == GREEDY
        assert not greedy_disagreement(oracle, prompt, new)


@pytest.mark.parametrize("variant", ["llama", "qwen2", "qwen3-tied", "llama3-rope"])
def test_greedy_tokens_match_transformers_on_a_prefix_hit(variant: str, tmp_path: Path) -> None:
    oracle = make(variant, tmp_path)
    runner = PagedRunner(load(tmp_path))
    first = prompts()[3]
    donor = runner.add(first)
    runner.greedy([donor], 5)
    same, longer, parting = list(first), [*first, 5, 6, 7], [*first[:29], 3, 1, 4]
    hits = [runner.add(tokens, share=donor) for tokens in (same, longer, parting)]
    assert [hit.cached for hit in hits] == [60, 64, 28]
    for prompt, new in zip((same, longer, parting), runner.greedy(hits, GREEDY, chunk=3), strict=True):
        assert not greedy_disagreement(oracle, prompt, new)


def test_prefill_joins_running_decodes(tmp_path: Path) -> None:
    oracle = make("qwen3", tmp_path)
    runner = PagedRunner(load(tmp_path))
    early, late = runner.add(prompts()[0]), runner.add(prompts()[4])
    early.tokens.append(int(runner.prefill([early])[0].argmax()))
    for _ in range(3):
        logits = runner.step([(late, 5), (early, 1)])
        early.tokens.append(int(logits[1].argmax()))
    assert not greedy_disagreement(oracle, prompts()[0], early.tokens[len(prompts()[0]) :])
    expected = oracle_logits(oracle, prompts()[4][:15])[-1]
    torch.testing.assert_close(logits[0], expected, rtol=FLOAT32_TOLERANCE, atol=FLOAT32_TOLERANCE)


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.25), ("float16", 0.03)])
@pytest.mark.parametrize("variant", ["llama", "qwen2", "qwen3"])
def test_half_precision_stays_near_transformers(variant: str, dtype: str, tolerance: float, tmp_path: Path) -> None:
    oracle = make(variant, tmp_path, getattr(torch, dtype))
    model = load(tmp_path, "auto")
    assert model.dtype is getattr(torch, dtype)
    runner = PagedRunner(model)
    logits = runner.prefill([runner.add(prompt) for prompt in prompts()])
    for row, prompt in zip(logits, prompts(), strict=True):
        torch.testing.assert_close(row, oracle_logits(oracle, prompt)[-1], rtol=0.05, atol=tolerance)


def test_sharded_checkpoint_equals_the_single_file(tmp_path: Path) -> None:
    whole, sharded = tmp_path / "whole", tmp_path / "sharded"
    make("llama", whole).save_pretrained(sharded, max_shard_size="100KB")
    assert len(list(sharded.glob("*.safetensors"))) > 2
    runners = [PagedRunner(load(folder)) for folder in (whole, sharded)]
    one, two = (runner.prefill([runner.add(prompts()[0])]) for runner in runners)
    assert torch.equal(one, two)


@pytest.mark.parametrize(("method", "tolerance"), [("int8", 0.04), ("q8_0", 0.04), ("q4_1", 0.5)])
def test_quantised_at_load_stays_near_full_precision(method: str, tolerance: float, tmp_path: Path) -> None:
    make("llama-tied", tmp_path, intermediate_size=128)
    full, rounded = load(tmp_path), load(tmp_path, quantization=method)
    assert rounded.weight_bytes < full.weight_bytes / 2.5
    assert rounded.num_parameters == full.num_parameters
    a, b = (PagedRunner(model) for model in (full, rounded))
    expected, found = (r.prefill([r.add(p) for p in prompts()]) for r in (a, b))
    error = (found - expected).square().mean().sqrt() / expected.square().mean().sqrt()
    assert 0 < error < tolerance


def test_rows_that_do_not_divide_into_blocks_stay_dense(tmp_path: Path) -> None:
    make("llama", tmp_path, intermediate_size=112)
    methods = {use.role: use.method for use in load(tmp_path, quantization="q4_1").describe_kernels() if use.method}
    assert methods.pop("down") == "dense"
    assert methods.pop("embedding") == "dense"
    assert set(methods.values()) == {"q4_1"}


def test_norms_done_with_the_layer_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of a block's products may answer the next layer's norm with their own sum; the logits are the same."""
    make("qwen3", tmp_path)
    plain = PagedRunner(load(tmp_path, overrides={"gemm": "torch"}))
    calls = []

    def joined(site: Site, op: str, traits: Mapping[str, TraitValue], method: str = "") -> Selection | None:
        if op != "gemm.add_norm":
            return None
        found = site.select(op, traits, method)

        def add_norm(*given: Any, **options: Any) -> Any:
            calls.append(options["norm"])
            return found.fn(*given, **options)

        return replace(found, fn=add_norm)

    monkeypatch.setattr(Site, "fused", joined)
    model = load(tmp_path, overrides={"gemm": "torch"})
    runner = PagedRunner(model)
    first, second = ([side.add(prompt) for prompt in prompts()] for side in (plain, runner))
    assert plain.greedy(first, 4) == runner.greedy(second, 4)
    assert torch.equal(plain.prefill(first), runner.prefill(second))
    assert len({id(norm) for norm in calls}) == 2 * model.config.num_layers, "each layer norms for the one after it"
