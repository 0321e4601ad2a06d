"""The decoder that dense models share: pre-norm attention and gated MLP, each added to the residual stream.

Owns the order of the layers and nothing below it: layers choose kernels and formats, attention reads the batch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import numpy as np
import torch

from tsd.engine.batch import ForwardBatch, KVCache
from tsd.engine.layers import Attention, Embedding, KernelUse, Layer, Linear, Placement, Site
from tsd.engine.model_config import ModelConfig
from tsd.engine.rope import rope_table
from tsd.engine.weights.source import WeightSource

Call = Callable[..., torch.Tensor]
Take = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]
Add = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor | None]]


class Shape(NamedTuple):
    """What tells one dense architecture from another, beyond its sizes."""

    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False


class KVSpec(NamedTuple):
    """What one token costs in the cache."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def bytes_per_token(self) -> int:
        """K and V of every layer."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize

    def tensor_shape(self, num_pages: int, page_size: int) -> tuple[int, int, int, int]:
        """The shape of one layer's K, and of its V."""
        return num_pages, page_size, self.kv_heads, self.head_dim


class Decoder:
    """A loaded model. Subclasses give `NAMES` (part to Hugging Face tensor stems) and `shape`."""

    NAMES: ClassVar[dict[str, tuple[str, ...]]]

    @staticmethod
    def shape(config: ModelConfig) -> Shape:
        """How this architecture differs from its relatives."""
        raise NotImplementedError

    def __init__(self, config: ModelConfig, site: Site, max_positions: int = 0) -> None:
        """Lays out the layers; weights come later. `max_positions` bounds the rotary table (0: the model's own)."""
        self.config = config
        self.site = site
        self.dtype = site.dtype
        self.device = site.device
        self.max_positions = min(max_positions or config.max_position_embeddings, config.max_position_embeddings)
        self.kv = KVSpec(config.num_layers, config.num_kv_heads, config.head_dim, site.kv_dtype or site.dtype)
        cos_sin = rope_table(config.rope, config.head_dim, self.max_positions, site.device)
        shape = self.shape(config)
        self._blocks = [self._block(i, shape, cos_sin) for i in range(config.num_layers)]
        self._head = Linear(
            site,
            "lm_head",
            self.NAMES["lm_head"],
            config.hidden_size,
            (config.vocab_size,),
            norm=self.NAMES["final_norm"][0],
            eps=config.rms_norm_eps,
            tied=config.tie_word_embeddings,
            placement=Placement.VOCAB,
        )
        tied = self._head if config.tie_word_embeddings else None
        self._embedding = Embedding(
            site, "embedding", self.NAMES["embedding"][0], config.vocab_size, config.hidden_size, tied
        )
        for (_, _, out, gate_up, down), following in zip(self._blocks, [*self._blocks[1:], None], strict=True):
            out.follower, down.follower = gate_up, following[0] if following is not None else self._head
        self._calls: list[tuple[Take, Call | None, Call, Call, Add, Take, Add]] = []

    def forward(self, batch: ForwardBatch, cache: KVCache) -> torch.Tensor:
        """Logits [S, vocabulary] in the model's dtype for the sampled tokens; K and V of all T tokens go to `cache`."""
        hidden, normed = self._embedding.call(batch.tokens), None
        last = len(self._calls) - 1
        narrow = batch.sample_index.shape[0] != batch.tokens.shape[0]
        single = batch.max_query_len == 1
        before_layer = batch.before_layer
        for index, (qkv, decode, write, attend, out, gate_up, down) in enumerate(self._calls):
            if before_layer is not None:
                before_layer(index)
            k, v = cache.k[index], cache.v[index]
            if single and decode is not None:
                mixed = decode(qkv(hidden, normed), k, v, batch)
            else:
                mixed = attend(write(qkv(hidden, normed), k, v, batch), k, v, batch)
            if index == last and narrow:  # past the last attention only sampled tokens matter
                mixed = mixed.index_select(0, batch.sample_index)
                hidden = hidden.index_select(0, batch.sample_index)
            hidden, normed = out(mixed, hidden)
            hidden, normed = down(gate_up(hidden, normed), hidden)
        return self._head.take(hidden, normed)

    def allocate_cache(self, num_pages: int, page_size: int) -> KVCache:
        """A zeroed device cache of this model's shape."""
        shape = self.kv.tensor_shape(num_pages, page_size)

        def zeros() -> torch.Tensor:
            if self.device.type == "cpu":
                # Zeroed by the kernel page by page as they are first used: memory that no token needs is not taken.
                raw = np.zeros(torch.Size(shape).numel() * self.kv.dtype.itemsize, np.uint8)
                return torch.from_numpy(raw).view(self.kv.dtype).view(shape)
            return torch.zeros(shape, dtype=self.kv.dtype, device=self.device)

        layers = range(self.kv.layers)
        return KVCache([zeros() for _ in layers], [zeros() for _ in layers], page_size, num_pages)

    def layers(self) -> list[Layer]:
        """Every layer, in the order weights are read."""
        return [self._embedding, *(layer for block in self._blocks for layer in block), self._head]

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Every Hugging Face tensor this model reads, with its shape."""
        return {name: shape for layer in self.layers() for name, shape in layer.tensors().items()}

    def ignores(self, name: str) -> bool:
        """Whether a tensor that is not read may be in the file: rotary buffers, and the head of a tied model."""
        head = f"{self.NAMES['lm_head'][0]}.weight"
        return name.endswith("rotary_emb.inv_freq") or (self.config.tie_word_embeddings and name == head)

    def plan(self, source: WeightSource) -> None:
        """Settles formats and kernels from what `source` holds. Reads no weight."""
        for layer in self.layers():
            layer.plan(source)

    def bind(self) -> None:
        """Once every layer is loaded: makes `forward` callable."""
        for qkv, attention, out, gate_up, down in self._blocks:
            out.join()
            down.join()
            mix = (attention.decode, attention.write, attention.attend)
            self._calls.append((qkv.take, *mix, out.add, gate_up.take, down.add))

    def first_layers(self, count: int) -> Decoder:
        """A model of the first `count` layers, with embedding and head, over the same weights: what a kernel needs of
        a step (sizes, types, alignment) is the same in each layer."""
        shallow = copy.copy(self)
        shallow._calls = self._calls[:count]
        return shallow

    @property
    def num_parameters(self) -> int:
        """Weights of the model, a tied table counted once."""
        return sum(torch.Size(shape).numel() for shape in self.tensors().values())

    @property
    def layer_parameters(self) -> int:
        """The same without the vocabulary's tables."""
        config = self.config
        tables = 1 if config.tie_word_embeddings else 2
        return self.num_parameters - tables * config.vocab_size * config.hidden_size

    @property
    def weight_bytes(self) -> int:
        """Bytes of device memory that the weights take (planned before loading, held afterwards)."""
        return sum(layer.weight_bytes for layer in self.layers())

    def describe_kernels(self) -> list[KernelUse]:
        """Each distinct kernel choice with its reasons and how many layers share it."""
        merged: dict[tuple[object, ...], KernelUse] = {}
        for layer in self.layers():
            for use in layer.uses():
                key = (use.role, use.op, use.method, use.shape, use.selection.spec.name)
                sites = merged[key].sites + 1 if key in merged else 1
                merged[key] = use._replace(sites=sites)
        return list(merged.values())

    def _block(self, i: int, shape: Shape, cos_sin: torch.Tensor) -> tuple[Linear, Attention, Linear, Linear, Linear]:
        config, site, eps = self.config, self.site, self.config.rms_norm_eps

        def names(part: str) -> tuple[str, ...]:
            return tuple(stem.format(i=i) for stem in self.NAMES[part])

        qkv = Linear(
            site,
            "qkv",
            names("qkv"),
            config.hidden_size,
            (config.q_size, config.kv_size, config.kv_size),
            bias=shape.qkv_bias,
            norm=names("attention_norm")[0],
            eps=eps,
            placement=Placement.COLUMN,
        )
        attention = Attention(
            site,
            "attention",
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            cos_sin=cos_sin,
            q_norm=names("q_norm")[0] if shape.qk_norm else "",
            k_norm=names("k_norm")[0] if shape.qk_norm else "",
            eps=eps,
        )
        out = Linear(
            site,
            "attention_out",
            names("attention_out"),
            config.q_size,
            (config.hidden_size,),
            bias=shape.out_bias,
            residual=True,
            placement=Placement.ROW,
        )
        down = Linear(
            site,
            "down",
            names("down"),
            config.intermediate_size,
            (config.hidden_size,),
            bias=shape.mlp_bias,
            act="silu_mul",
            residual=True,
            placement=Placement.ROW,
        )
        gate_up = Linear(
            site,
            "gate_up",
            names("gate_up"),
            config.hidden_size,
            (config.intermediate_size, config.intermediate_size),
            bias=shape.mlp_bias,
            norm=names("mlp_norm")[0],
            eps=eps,
            gates=down,
            placement=Placement.COLUMN,
        )
        return qkv, attention, out, gate_up, down
