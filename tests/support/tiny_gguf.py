"""Writes transformers models as GGUF files with the gguf library, the way converters lay them out."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import torch
import transformers

ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
}
F32 = gguf.GGMLQuantizationType.F32


def write(
    model: transformers.PreTrainedModel, path: Path, kind: gguf.GGMLQuantizationType = F32, **fields: int | str
) -> dict[str, torch.Tensor]:
    """Writes `model` with its matrices as `kind`; returns what a reader de-quantises, under its own names.

    `fields` go into the metadata under the architecture's prefix (a double underscore stands for a dot).
    """
    config = model.config
    name = config.model_type
    writer = gguf.GGUFWriter(path, name)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_array("tokenizer.ggml.tokens", [f"t{i}" for i in range(config.vocab_size)])
    for key, value in fields.items():
        key = f"{name}.{key.replace('__', '.')}"
        (writer.add_uint32 if isinstance(value, int) else writer.add_string)(key, value)  # type: ignore[arg-type]
    names = gguf.get_tensor_name_map(ARCHITECTURES[name], config.num_hidden_layers)
    read_back = {}
    for own, parameter in model.state_dict().items():
        if own == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = parameter.float().numpy()
        used = kind if array.ndim == 2 else F32
        blocks = gguf.quants.quantize(array, used)
        read_back[own] = torch.from_numpy(gguf.quants.dequantize(blocks, used).copy())
        if name == "llama" and ".self_attn.q_proj." in own:
            blocks = interleave(blocks, config.num_attention_heads)
        if name == "llama" and ".self_attn.k_proj." in own:
            blocks = interleave(blocks, config.num_key_value_heads)
        target = names.get_name(own, try_suffixes=(".weight", ".bias"))
        assert target is not None, own
        writer.add_tensor(target, blocks, raw_dtype=used)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return read_back


def interleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """The row order of GGUF's llama: the two halves of each head, one row of each in turn."""
    split = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(rows.shape)
