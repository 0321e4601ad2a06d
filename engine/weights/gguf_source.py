"""A GGUF file seen as a Hugging Face checkpoint: names translated, rows put in order, blocks packed or expanded."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch

from tsd.engine.model_config import ModelConfig
from tsd.engine.model_errors import WeightsError
from tsd.engine.weights.gguf_file import GGUFFile
from tsd.engine.weights.source import TensorInfo, WeightSource
from tsd.kernels.weight import Weight, from_gguf

_GLOBAL_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_PACKED = {"Q4_0": "q4_1", "Q4_1": "q4_1", "Q8_0": "q8_0"}
_NOT_WEIGHTS = {"rope_freqs.weight"}
_SLAB_BYTES = 4 << 20


def hf_name(name: str) -> str:
    """The Hugging Face name of a GGUF tensor; names that are not known stay as they are."""
    stem, _, suffix = name.rpartition(".")
    if stem in _GLOBAL_NAMES:
        return f"{_GLOBAL_NAMES[stem]}.{suffix}"
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    if match and match[2] in _LAYER_NAMES:
        return f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.{suffix}"
    return name


class GGUFSource(WeightSource):
    """Reads one GGUF file. Raises WeightsError for any damage."""

    def __init__(self, path: str | Path, config: ModelConfig) -> None:
        self.path = str(path)
        self._file = GGUFFile(path)
        self._config = config
        self._interleaved = self._file.metadata.get("general.architecture") == "llama"
        self._names = {hf_name(name): name for name in self._file.tensors if name not in _NOT_WEIGHTS}
        self._index = {
            name: TensorInfo(self._file.tensors[own].shape, self._file.tensors[own].kind, self.path)
            for name, own in self._names.items()
        }

    @property
    def index(self) -> dict[str, TensorInfo]:
        return self._index

    def packed_method(self, name: str) -> str:
        info = self._index.get(name)
        return _PACKED.get(info.kind, "") if info is not None else ""

    def read_packed(self, name: str) -> Weight:
        blocks = self._file.data(self._names[name])
        order = self._row_order(name, blocks.shape[0])
        return from_gguf(self._index[name].kind, blocks if order is None else blocks[order])

    def read_into(self, name: str, out: torch.Tensor) -> None:
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        kind = GGMLQuantizationType[self._index[name].kind]
        blocks = self._file.data(self._names[name])
        vector = out.dim() == 1
        order = self._row_order(name, out.shape[0] if vector else blocks.shape[0])
        rows = out.reshape(1, -1) if vector else out
        step = max(1, _SLAB_BYTES // blocks.shape[1])
        for start in range(0, blocks.shape[0], step):
            end = min(start + step, blocks.shape[0])
            slab = blocks[start:end] if order is None or vector else blocks[order[start:end]]
            try:
                values = dequantize(np.ascontiguousarray(slab), kind)
            except NotImplementedError as error:
                raise WeightsError(self.path, f"type {kind.name} cannot be de-quantised", name) from error
            if vector and order is not None:
                values = values[:, order]
            rows[start:end].copy_(torch.from_numpy(np.require(values, np.float32, ["C", "W", "O"])))

    def close(self) -> None:
        self._file.close()

    def _row_order(self, name: str, rows: int) -> np.ndarray | None:
        """Where each row of a query or key projection lies in the file, or None if rows are in order.

        GGUF's llama layout rotates adjacent rows (2i, 2i + 1) of a head, Hugging Face's rows (i, i + head_dim / 2).
        """
        if not self._interleaved or not re.search(r"self_attn\.[qk]_proj\.", name):
            return None
        dim = self._config.head_dim
        if rows % dim:
            return None
        within = np.arange(dim).reshape(dim // 2, 2).T.reshape(-1)
        return (np.arange(0, rows, dim)[:, None] + within).reshape(-1)
