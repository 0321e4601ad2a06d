"""Grouped-query attention over the paged cache, without its projections: rotation and cache write, then attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from tsd.engine.layers.loading import read_vector
from tsd.engine.layers.site import KernelUse, Layer, Placement, Site
from tsd.engine.weights.source import WeightSource
from tsd.kernels.spec import BadOverride, NoKernel, Priority, Selection, TraitValue


class Attention(Layer):
    """`write(qkv, k_cache, v_cache, batch) -> q [T, Hq, D]`, then `attend(q, k_cache, v_cache, batch) -> [T, Hq*D]`.

    Where the chosen `attend` has a sibling that does both for rows of one token, that is `decode(qkv, k_cache, v_cache,
    batch) -> [T, Hq*D]`; else `decode` is None.
    """

    def __init__(
        self,
        site: Site,
        role: str,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        cos_sin: torch.Tensor,
        q_norm: str = "",
        k_norm: str = "",
        eps: float = 0.0,
    ) -> None:
        self.site = site
        self.role = role
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.cos_sin = cos_sin
        self.q_norm = q_norm
        self.k_norm = k_norm
        self.eps = eps
        self.scale = head_dim**-0.5
        self.placement = Placement.COLUMN
        self._write: Selection | None = None
        self._attend: Selection | None = None
        self._decode: Selection | None = None
        self.write: Callable[..., torch.Tensor]
        self.attend: Callable[..., torch.Tensor]
        self.decode: Callable[..., torch.Tensor] | None = None

    def tensors(self) -> dict[str, tuple[int, ...]]:
        return {f"{name}.weight": (self.head_dim,) for name in (self.q_norm, self.k_norm) if name}

    def plan(self, source: WeightSource) -> None:
        traits: dict[str, TraitValue] = {
            "num_q": self.num_heads,
            "num_kv": self.num_kv_heads,
            "head_dim": self.head_dim,
            "dtype": str(self.site.dtype).removeprefix("torch."),
            "kv_dtype": str(self.site.kv_dtype or self.site.dtype).removeprefix("torch."),
        }
        self._attend = self.site.select("attention.paged", traits)
        traits["qk_norm"] = bool(self.q_norm)
        self._write = self.site.select("attention.rope_write", traits)
        self._decode = self._sibling(self._attend, traits)

    def load(self, source: WeightSource) -> None:
        assert self._write is not None and self._attend is not None, "plan() comes first"
        options: dict[str, object] = {}
        if self.q_norm:
            options["q_norm"] = read_vector(self.site, source, [f"{self.q_norm}.weight"], (self.head_dim,))
        if self.k_norm:
            options["k_norm"] = read_vector(self.site, source, [f"{self.k_norm}.weight"], (self.head_dim,))
        if options:
            options["eps"] = self.eps
        options["cos_sin"] = self.cos_sin
        options["num_q"], options["num_kv"], options["head_dim"] = self.num_heads, self.num_kv_heads, self.head_dim
        self.write = partial(self._write.fn, **options)
        self.attend = partial(self._attend.fn, scale=self.scale)
        if self._decode is not None:
            self.decode = partial(self._decode.fn, scale=self.scale, **options)

    def uses(self) -> list[KernelUse]:
        assert self._write is not None and self._attend is not None, "plan() comes first"
        shape = (self.num_heads, self.num_kv_heads, self.head_dim)
        chosen = [self._write, self._attend] + ([self._decode] if self._decode is not None else [])
        return [KernelUse(self.role, selection.spec.op, "", shape, 1, selection) for selection in chosen]

    def _sibling(self, attend: Selection, traits: dict[str, TraitValue]) -> Selection | None:
        """The kernel for decode alone that goes with the chosen `attend`: same name, and not the reference."""
        if attend.spec.priority == Priority.REFERENCE:
            return None
        try:
            found = self.site.select("attention.rope_decode", traits)
            if found.spec.name == attend.spec.name:
                return found
            found = self.site.select("attention.rope_decode", traits, override=attend.spec.name)
        except (NoKernel, BadOverride):
            return None  # none has that name, or keeps what the objective asks for; write and attend do
        return replace(found, why=f"goes with {attend.spec.name}")

    @property
    def weight_bytes(self) -> int:
        return sum(shape[0] for shape in self.tensors().values()) * self.site.dtype.itemsize
