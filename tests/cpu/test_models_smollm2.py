"""The default model: transformers, loading the same GGUF, is the oracle for full precision; packed comes near."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import transformers
from support.paged import PagedRunner
from support.tiny_models import greedy_disagreement, oracle_logits

from tsd.engine.model_config import load_model_config
from tsd.engine.models import Decoder, build_model
from tsd.engine.weights import open_weights

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPTS = [
    # <|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n
    [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198],
    # def fibonacci(n):\n
    [1604, 3987, 46477, 24, 94, 727, 198],
    # The three laws of thermodynamics state that energy
    [504, 1296, 3707, 282, 39361, 1215, 338, 1439],
]
GREEDY = 64


def model_path() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME", "") or Path.home() / ".cache")
    return Path(os.environ.get("TSD_TEST_MODEL", "") or cache / "tsd" / "models" / FILE)


pytestmark = pytest.mark.skipif(not model_path().exists(), reason="the default model is not downloaded")


def load(**options: str) -> Decoder:
    torch.set_num_threads(1)
    config = load_model_config(model_path())
    source = open_weights(model_path(), config=config)
    model = build_model(config, weights=source, **options)  # type: ignore[arg-type]
    source.close()
    return model


@pytest.fixture(scope="module")
def oracle() -> transformers.PreTrainedModel:
    folder, file = model_path().parent, model_path().name
    return transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def full() -> Decoder:
    return load(quantization="none")


def test_full_precision_logits(full: Decoder, oracle: transformers.PreTrainedModel) -> None:
    runner = PagedRunner(full, page_size=16)
    found = runner.prefill([runner.add(prompt) for prompt in PROMPTS])
    expected = torch.stack([oracle_logits(oracle, prompt)[-1] for prompt in PROMPTS])
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=2e-3)


def test_full_precision_greedy(full: Decoder, oracle: transformers.PreTrainedModel) -> None:
    runner = PagedRunner(full, page_size=16)
    for prompt, new in zip(PROMPTS, runner.greedy([runner.add(p) for p in PROMPTS], GREEDY), strict=True):
        assert len(new) == GREEDY
        assert not greedy_disagreement(oracle, prompt, new)


def test_packed_stays_near_full_precision(oracle: transformers.PreTrainedModel) -> None:
    """Weights are the same numbers; what differs is that the packed kernels round activations to 16 bits.

    Logits stay within half a percent of their standard deviation (root mean square), and greedy tokens are the same.
    """
    packed = load(quantization="auto")
    if all(use.method in ("", "dense") for use in packed.describe_kernels()):
        pytest.skip("no packed kernel runs on this machine")
    runner = PagedRunner(packed, page_size=16)
    errors = []
    for prompt in PROMPTS:
        row = runner.add(prompt)
        new = runner.greedy([row], GREEDY)[0]
        assert len(new) == GREEDY
        assert not greedy_disagreement(oracle, prompt, new)
        expected = oracle_logits(oracle, [*prompt, *new])[-2]
        fresh = runner.add([*prompt, *new[:-1]])
        found = runner.prefill([fresh])[0]
        errors.append(float((found - expected).square().mean().sqrt() / expected.std()))
    print(f"error of logits over their spread {max(errors):.4f}")
    assert max(errors) < 0.005, errors
    assert packed.weight_bytes < 100e6
