"""Llama (arXiv 2302.13971, 2407.21783): pre-norm decoder, rotary grouped-query attention, SwiGLU."""

from __future__ import annotations

from typing import ClassVar

from tsd.engine.model_config import ModelConfig
from tsd.engine.models.decoder import Decoder, Shape


class Llama(Decoder):
    """Biases, where a variant has them, sit on all four attention projections or on all three of the MLP."""

    NAMES: ClassVar = {
        "embedding": ("model.embed_tokens",),
        "attention_norm": ("model.layers.{i}.input_layernorm",),
        "qkv": (
            "model.layers.{i}.self_attn.q_proj",
            "model.layers.{i}.self_attn.k_proj",
            "model.layers.{i}.self_attn.v_proj",
        ),
        "attention_out": ("model.layers.{i}.self_attn.o_proj",),
        "mlp_norm": ("model.layers.{i}.post_attention_layernorm",),
        "gate_up": ("model.layers.{i}.mlp.gate_proj", "model.layers.{i}.mlp.up_proj"),
        "down": ("model.layers.{i}.mlp.down_proj",),
        "final_norm": ("model.norm",),
        "lm_head": ("lm_head",),
    }

    @staticmethod
    def shape(config: ModelConfig) -> Shape:
        return Shape(qkv_bias=config.attention_bias, out_bias=config.attention_bias, mlp_bias=config.mlp_bias)
