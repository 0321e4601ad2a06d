"""Tiny random checkpoints made by transformers, which is also the oracle for what they compute."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 160,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-biased": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama3-rope": ("Llama", {"rope_parameters": LLAMA3_ROPE}),
    "llama-yarn": ("Llama", {"rope_parameters": YARN_ROPE}),
    "llama-linear": ("Llama", {"rope_parameters": LINEAR_ROPE}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": False}),
    "qwen2-tied": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 32, "tie_word_embeddings": False}),
    "qwen3-tied": ("Qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
}


def make(
    variant: str, folder: Path, dtype: torch.dtype = torch.float32, **changes: Any
) -> transformers.PreTrainedModel:
    """A random model of `variant`, saved to `folder` as safetensors; biases and norms are random too."""
    family, fields = VARIANTS[variant]
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **fields, **changes})
    config._attn_implementation = "eager"
    torch.manual_seed(sum(variant.encode()))
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.uniform_(0.5, 1.5)
            elif name.endswith("bias"):
                parameter.normal_(0.0, 0.5)
            else:
                parameter.normal_(0.0, 0.15)
    model = model.to(dtype)
    model.save_pretrained(folder)
    return model


def oracle_logits(model: transformers.PreTrainedModel, tokens: Sequence[int]) -> torch.Tensor:
    """transformers' logits [len(tokens), V] float32 of one sequence."""
    with torch.no_grad():
        return model(torch.tensor([list(tokens)])).logits[0].float()


def greedy_disagreement(model: transformers.PreTrainedModel, prompt: Sequence[int], new: Sequence[int]) -> str:
    """Where `new` leaves transformers' greedy continuation of `prompt`, or "" if it is that continuation.

    One forward over both is enough: if each token is the argmax after those before it, then by induction all are.
    """
    best = oracle_logits(model, [*prompt, *new])[len(prompt) - 1 : -1].argmax(-1).tolist()
    wrong = [i for i, (expected, token) in enumerate(zip(best, new, strict=True)) if expected != token]
    return f"token {wrong[0]} is {new[wrong[0]]}, transformers has {best[wrong[0]]}" if wrong else ""
