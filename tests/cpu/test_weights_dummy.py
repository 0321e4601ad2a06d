"""Dummy weights: from a configuration alone, the same for the same seed, and never so large that logits overflow."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.paged import PagedRunner
from support.tiny_models import SIZES

from tsd.engine.model_config import config_from_json
from tsd.engine.model_errors import ConfigError
from tsd.engine.models import Decoder, LoadProgress, build_model, resolve_dtype
from tsd.engine.weights import open_weights


def dummy(
    seed: int = 0, architecture: str = "Qwen3ForCausalLM", sizes: dict[str, Any] | None = None, **options: Any
) -> Decoder:
    config = config_from_json({**SIZES, "architectures": [architecture], **(sizes or {})})
    return build_model(config, weights=open_weights("nowhere", "dummy", config=config, seed=seed), **options)


def logits(model: Decoder) -> torch.Tensor:
    runner = PagedRunner(model)
    return runner.prefill([runner.add([3, 1, 4, 1, 5])])


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"])
def test_seed_decides(architecture: str) -> None:
    first, again, other = (logits(dummy(seed, architecture)) for seed in (7, 7, 8))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_deep_wide_model_stays_finite(dtype: str) -> None:
    sizes = {"num_hidden_layers": 24, "hidden_size": 1024, "intermediate_size": 512, "num_attention_heads": 16}
    found = logits(dummy(sizes=sizes, dtype=dtype))
    assert torch.isfinite(found).all()
    assert 0.1 < found.std() < 10


def test_progress_reaches_the_end_and_never_goes_back() -> None:
    seen: list[LoadProgress] = []
    model = dummy(progress=seen.append)
    done = [progress.done_bytes for progress in seen]
    assert done == sorted(done)
    assert done[-1] == seen[-1].total_bytes == model.weight_bytes


def test_a_dry_run_settles_sizes_and_kernels_without_weights() -> None:
    planned, loaded = dummy(load=False), dummy()
    assert planned.weight_bytes == loaded.weight_bytes
    assert planned.num_parameters == loaded.num_parameters
    assert planned.describe_kernels() == loaded.describe_kernels()
    assert planned.kv.bytes_per_token == 2 * 3 * 2 * 16 * 4
    roles = [(use.role, use.op, use.sites) for use in planned.describe_kernels()]
    assert ("qkv", "gemm.linear", 3) in roles
    assert ("lm_head", "gemm.linear", 1) in roles


def test_dtype_is_resolved_from_argument_file_and_device() -> None:
    config = config_from_json({**SIZES, "architectures": ["LlamaForCausalLM"], "dtype": "float16"})
    silent = config_from_json({**SIZES, "architectures": ["LlamaForCausalLM"]})
    assert resolve_dtype(config, "auto", "cpu") is torch.float16
    assert resolve_dtype(config, "bfloat16", "cpu") is torch.bfloat16
    assert resolve_dtype(silent, "auto", "cpu") is torch.float32
    assert resolve_dtype(silent, "auto", "cuda") is torch.bfloat16
    with pytest.raises(ConfigError, match="int8"):
        resolve_dtype(config, "int8", "cpu")
    with pytest.raises(ConfigError, match="quantization 'awq'"):
        dummy(quantization="awq")
