"""The rotary table holds transformers' angles, for every kind of scaling and far into the context."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.tiny_models import LINEAR_ROPE, LLAMA3_ROPE, SIZES, YARN_ROPE
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from tsd.engine.model_config import config_from_json
from tsd.engine.rope import inverse_frequencies, rope_table

LLAMA_3_1 = {**LLAMA3_ROPE, "rope_theta": 500000.0, "original_max_position_embeddings": 8192}
YARN_FULL = {**YARN_ROPE, "factor": 32.0, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False}
YARN_SCALED = {**YARN_ROPE, "mscale": 0.707, "mscale_all_dim": 1.0}
YARN_FIXED = {**YARN_ROPE, "attention_factor": 0.9}


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default", "rope_theta": 1e6},
        LINEAR_ROPE,
        LLAMA3_ROPE,
        LLAMA_3_1,
        YARN_ROPE,
        YARN_FULL,
        YARN_SCALED,
        YARN_FIXED,
    ],
)
def test_table_is_that_of_transformers(rope: dict[str, Any]) -> None:
    sizes = {**SIZES, "head_dim": 128, "max_position_embeddings": 16384}
    theirs = LlamaRotaryEmbedding(LlamaConfig(**sizes, rope_parameters=dict(rope)))
    ours = config_from_json({**sizes, "architectures": ["LlamaForCausalLM"], "rope_parameters": rope}).rope
    torch.testing.assert_close(inverse_frequencies(ours, 128), theirs.inv_freq, rtol=1e-6, atol=0)
    cos, sin = theirs(torch.zeros(1), torch.arange(0, 16384)[None])
    table = rope_table(ours, 128, 16384, "cpu")
    assert table.dtype is torch.float32
    # One rounding of the frequency moves the angle of position 16,383 by up to 1e-3.
    torch.testing.assert_close(table[:, :64], cos[0, :, :64], rtol=0, atol=3e-3)
    torch.testing.assert_close(table[:, 64:], sin[0, :, :64], rtol=0, atol=3e-3)
    torch.testing.assert_close(table[:512, :64], cos[0, :512, :64], rtol=0, atol=1e-4)
