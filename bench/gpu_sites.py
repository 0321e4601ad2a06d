"""The layers that the GPU kernels are tuned and timed on, and one launch of each as a closure over its own buffers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace

import torch

from tsd.kernels.triton import attention, decode, linear, slabs
from tsd.kernels.triton.norm import silu_mul
from tsd.kernels.triton.tiling import Tiling


@dataclass(frozen=True)
class Dense:
    """Sizes of a dense decoder (Hugging Face names in brackets)."""

    name: str
    hidden: int
    inter: int
    layers: int
    num_q: int
    num_kv: int
    head_dim: int = 128
    vocab: int = 151_936


MODELS = {
    "qwen3-0.6b": Dense("qwen3-0.6b", 1024, 3072, 28, 16, 8),
    "qwen3-8b": Dense("qwen3-8b", 4096, 12288, 36, 32, 8),
}


@dataclass(frozen=True)
class Layer:
    """One linear layer: y [rows, n] from [rows, k], with what is fused into it."""

    role: str
    n: int
    k: int
    gated: bool = False
    norm: bool = False
    residual: bool = False

    @property
    def weight_rows(self) -> int:
        return self.n * (2 if self.gated else 1)

    @property
    def nbytes(self) -> int:
        return self.weight_rows * self.k * 2


def layers_of(model: Dense) -> list[Layer]:
    """The linear layers of one block, and the vocabulary head."""
    q, kv = model.num_q * model.head_dim, model.num_kv * model.head_dim
    return [
        Layer("qkv", q + 2 * kv, model.hidden, norm=True),
        Layer("out", model.hidden, q, residual=True),
        Layer("gated", model.inter, model.hidden, gated=True, norm=True),
        Layer("down", model.hidden, model.inter, residual=True),
        Layer("head", model.vocab, model.hidden, norm=True),
    ]


def random(*shape: int, scale: float = 1.0, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return (torch.randn(shape, device="cuda", dtype=torch.float32) * scale).to(dtype)


class LayerBuffers:
    """Inputs of one layer at one number of rows, with `copies` weights to rotate over."""

    def __init__(self, layer: Layer, rows: int, copies: int) -> None:
        self.layer = layer
        self.x = random(rows, layer.k)
        self.norm = random(layer.k) if layer.norm else None
        self.following = random(layer.n)
        self.residual = random(rows, layer.n) if layer.residual else None
        first = random(layer.weight_rows, layer.k, scale=layer.k**-0.5)
        self.weights = [first] + [first.clone() for _ in range(copies - 1)]
        self.y = torch.empty((rows, layer.n), dtype=self.x.dtype, device="cuda")

    def launches(self, plan: linear.Tiled) -> list[Callable[[], object]]:
        def one(w: torch.Tensor) -> Callable[[], object]:
            return lambda: linear.launch(
                plan,
                self.x,
                w,
                self.y,
                bias=None,
                norm=self.norm,
                eps=1e-6,
                act=False,
                residual=self.residual,
                gated=self.layer.gated,
            )

        return [one(w) for w in self.weights]

    def normed_launches(self, plan: linear.Slab) -> list[Callable[[], object]]:
        """The layer joined with the norm that follows it."""
        residual = self.residual
        assert residual is not None, "only layers with a residual are followed by a norm"

        def one(w: torch.Tensor) -> Callable[[], object]:
            return lambda: slabs.multiply_add_norm(plan, self.x, w, residual, self.following, 1e-6)

        return [one(w) for w in self.weights]

    def library_launches(self) -> list[Callable[[], object]]:
        """The same function by the vendor's product, with norm and activation as kernels of their own."""

        def one(w: torch.Tensor) -> Callable[[], object]:
            def call() -> torch.Tensor:
                y = linear.library(self.x, w, bias=None, norm=self.norm, eps=1e-6, act=False, residual=self.residual)
                return silu_mul(y) if self.layer.gated else y

            return call

        return [one(w) for w in self.weights]


def gemv_plans(layer: Layer) -> list[linear.Gemv]:
    """Tilings worth timing for one row."""
    lanes = 2 if layer.gated else 1
    found = []
    whole = 1 << (layer.k - 1).bit_length()
    for bk in {1024, 2048, min(whole, 4096), whole}:
        if bk > whole or bk > 16384:
            continue
        for bn in (1, 2, 4, 8, 16):
            for warps in (2, 4, 8):
                per_thread = bn * bk * lanes // (32 * warps)
                if 16 <= per_thread <= 128 and layer.n // bn >= 128:
                    found.append(linear.Gemv(bn, bk, warps))
    return found


def skinny_plans(layer: Layer, rows: int) -> list[linear.Skinny]:
    """Tilings worth timing for 2 to 128 rows: enough programs to fill the GPU, tiles that fit its shared memory."""
    lanes = 2 if layer.gated else 1
    found = []
    for bn, warps in ((16, 4), (32, 4), (64, 4), (128, 8)) if rows <= 64 else ((64, 4), (64, 8), (128, 8)):
        if rows * bn * lanes > 128 * 32 * warps:  # sums that no longer fit the registers
            continue
        for split in (1, 2, 4, 8):
            blocks = -(-layer.n // bn) * split
            if blocks < 60 or (split > 1 and blocks > 600):
                continue
            for bk, stages in ((64, 4), (64, 8), (128, 4), (256, 3)):
                shared = (rows + bn * lanes) * bk * 2 * stages
                if layer.k % (bk * split) or layer.k // split < 2 * bk or not 24_000 < shared < 200_000:
                    continue
                found.append(linear.Skinny(bn, bk, split, warps, stages, 64 if layer.k // split > 512 else 256))
    return found


def slab_plans(layer: Layer, rows: int, *, normed: bool = False) -> list[linear.Slab]:
    """Tilings worth timing for 2 rows and more, with little shared memory or much.

    `normed`: with the norm that follows, which adds up any number of parts.
    """
    padded = max(16, 1 << (rows - 1).bit_length())
    splits = ((1, 2, 3, 4, 6, 8, 12) if rows <= 64 else (1, 2, 4)) if normed else (1, 2, 4) if rows <= 64 else (1,)
    found = []
    for bn, bm, split in product((64, 128), [padded] if rows <= 64 else [64, 128, 256], splits):
        programs = -(-layer.weight_rows // bn) * split * -(-rows // bm)
        if programs < 48 or (split > 1 and programs > 400) or bm >= 2 * rows:
            continue
        for bk in (64, 128):
            if layer.k % (bk * split):
                continue
            tile = (bm + bn) * bk * 2
            steps = layer.k // split // bk
            stages = {min(steps, 110_000 // tile), min(steps, 220_000 // tile)}
            found += [
                linear.Slab(bn, bk, split, count, bm if rows > 64 else 0)
                for count in sorted(stages)
                if 2 <= count <= 12
            ]
    return found


def tile_plans(layer: Layer, rows: int) -> list[linear.Tile]:
    """Tilings worth timing for some hundred rows: enough programs for the GPU, or all of them in it at once."""
    lanes = 2 if layer.gated else 1
    shapes = ((64, 64, 4), (64, 128, 4 * lanes), (128, 64, 4 * lanes), (128, 128, 8), (64, 256, 8))
    found = []
    for bm, bn, warps in shapes:
        if bm * bn * lanes > 128 * 32 * warps:  # sums that no longer fit the registers
            continue
        tiles = -(-rows // bm) * -(-layer.n // bn)
        for split in (1, 2, 4):
            if tiles * split < 60 or (split > 1 and tiles * split > 420):
                continue
            for bk, stages in ((64, 3), (64, 4), (64, 5), (128, 3), (128, 4)):
                shared = (bm + bn * lanes) * bk * 2 * stages
                if layer.k % (bk * split) == 0 and layer.k // split >= 4 * bk and shared < 200_000:
                    found.append(linear.Tile(bm, bn, bk, split, warps, stages))
    return found


def paged_batch(rows: int, length: int, page_size: int, query: int = 1) -> SimpleNamespace:
    """Rows of one length, the last `query` tokens of each new, on shuffled pages."""
    pages = -(-length // page_size)
    table = torch.randperm(rows * pages, device="cuda", dtype=torch.int32).view(rows, pages)
    positions = torch.arange(length - query, length, device="cuda", dtype=torch.int32).repeat(rows)
    owner = torch.arange(rows, device="cuda").repeat_interleave(query)
    slots = table[owner, (positions // page_size).long()] * page_size + positions % page_size
    return SimpleNamespace(
        positions=positions,
        kv_slots=slots.to(torch.int32),
        query_start=torch.arange(rows + 1, device="cuda", dtype=torch.int32) * query,
        kv_lens=torch.full((rows,), length, device="cuda", dtype=torch.int32),
        page_table=table,
        num_decode=rows if query == 1 else 0,
        num_rows=rows,
        max_query_len=query,
        max_kv_len=length,
        page_size=page_size,
        pages=rows * pages,
    )


def mixed_batch(singles: int, chunks: int, query: int, length: int, common: int, page_size: int) -> SimpleNamespace:
    """Rows of one length of which `singles` have one new token and the rest `query`; they begin with the same pages."""
    rows = singles + chunks
    batch = paged_batch(rows, length, page_size)
    shared = common // page_size
    batch.page_table[:, :shared] = batch.page_table[0, :shared].clone()
    counts = torch.tensor([1] * singles + [query] * chunks, device="cuda")
    ends = counts.cumsum(0)
    owner = torch.arange(rows, device="cuda").repeat_interleave(counts)
    positions = length - ends[owner] + torch.arange(int(ends[-1]), device="cuda")
    slots = batch.page_table[owner, positions // page_size] * page_size + positions % page_size
    batch.positions, batch.kv_slots = positions.int(), slots.to(torch.int32)
    batch.query_start = torch.cat((ends.new_zeros(1), ends)).int()
    batch.num_decode, batch.max_query_len = rows, query
    return batch


class PagedBuffers:
    """Queries and rotating caches of one attention call."""

    def __init__(self, model: Dense, rows: int, length: int, page_size: int, query: int, copies: int) -> None:
        self.model = model
        self.batch = paged_batch(rows, length, page_size, query)
        self.q = random(rows * query, model.num_q, model.head_dim)
        shape = (2, self.batch.pages, page_size, model.num_kv, model.head_dim)
        self.caches = [random(*shape) for _ in range(copies)]
        self.out = torch.empty((rows * query, model.num_q * model.head_dim), dtype=self.q.dtype, device="cuda")
        self.qkv = random(rows * query, (model.num_q + 2 * model.num_kv) * model.head_dim)
        self.gain = random(model.head_dim)
        self.cos_sin = torch.rand(length + 1, model.head_dim, device="cuda")

    def launches(self, tiling: Tiling) -> list[Callable[[], object]]:
        """Prefill with one tiling."""

        def one(cache: torch.Tensor) -> Callable[[], object]:
            scale = self.model.head_dim**-0.5
            return lambda: attention.prefill(self.q, cache[0], cache[1], self.out, self.batch, scale, tiling)

        return [one(cache) for cache in self.caches]

    def fused_launches(self) -> list[Callable[[], object]]:
        """Decode with norms, rope and cache write in the same launch."""
        model = self.model

        def one(cache: torch.Tensor) -> Callable[[], object]:
            return lambda: decode.rope_decode(
                self.qkv,
                cache[0],
                cache[1],
                self.batch,
                self.cos_sin,
                model.head_dim**-0.5,
                num_q=model.num_q,
                num_kv=model.num_kv,
                head_dim=model.head_dim,
                q_norm=self.gain,
                k_norm=self.gain,
                eps=1e-6,
            )

        return [one(cache) for cache in self.caches]
