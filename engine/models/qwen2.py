"""Qwen2 and Qwen2.5 (arXiv 2407.10671): Llama's decoder with biases on the query, key and value projections."""

from __future__ import annotations

from tsd.engine.model_config import ModelConfig
from tsd.engine.models.decoder import Shape
from tsd.engine.models.llama import Llama


class Qwen2(Llama):
    """The biases are part of the architecture: no field of the configuration turns them off."""

    @staticmethod
    def shape(config: ModelConfig) -> Shape:
        return Shape(qkv_bias=True)
