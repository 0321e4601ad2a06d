"""Qwen3, dense (arXiv 2505.09388): Llama's decoder with RMSNorm over each query and key head before rotation."""

from __future__ import annotations

from typing import ClassVar

from tsd.engine.model_config import ModelConfig
from tsd.engine.models.decoder import Shape
from tsd.engine.models.llama import Llama


class Qwen3(Llama):
    """No biases in published checkpoints; `attention_bias` puts them on all four attention projections."""

    NAMES: ClassVar = {
        **Llama.NAMES,
        "q_norm": ("model.layers.{i}.self_attn.q_norm",),
        "k_norm": ("model.layers.{i}.self_attn.k_norm",),
    }

    @staticmethod
    def shape(config: ModelConfig) -> Shape:
        return Shape(qkv_bias=config.attention_bias, out_bias=config.attention_bias, qk_norm=True)
