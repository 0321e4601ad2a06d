"""A matrix product with what surrounds it: the norm before, the activation before, the bias and the residual after."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from tsd.engine.layers.loading import planned_bytes, read_vector, read_weight, settle_method, stored_method
from tsd.engine.layers.site import KernelUse, Layer, Placement, Site
from tsd.engine.weights.source import WeightSource
from tsd.kernels.spec import Selection, TraitValue
from tsd.kernels.weight import Weight


class Linear(Layer):
    """y [T, N] = f(x) @ W.T + bias (+ residual). Several named projections of one input are fused into one matrix.

    After `load`, `call(x)` or, if built with `residual`, `call(x, residual=h)` runs the chosen kernel. A layer that
    `gates` another, whose activation its outputs feed, applies that activation itself where a kernel can: it then
    answers half as many columns, and the other layer does without. A layer with a residual may also do the norm of
    its `follower`, the layer that reads the sum: `add` and the follower's `take` pass it on (after `join`).
    """

    def __init__(
        self,
        site: Site,
        role: str,
        names: tuple[str, ...],
        in_features: int,
        out_features: tuple[int, ...],
        *,
        bias: bool = False,
        norm: str = "",
        eps: float = 0.0,
        act: str | None = None,
        residual: bool = False,
        tied: bool = False,
        gates: Linear | None = None,
        placement: Placement = Placement.REPLICATED,
    ) -> None:
        assert len(names) == len(out_features)
        self.site = site
        self.role = role
        self.names = names
        self.in_features = in_features
        self.out_features = out_features
        self.has_bias = bias
        self.norm_name = norm
        self.eps = eps
        self.act = act
        self.gated_before = False
        self.has_residual = residual
        self.tied = tied
        self.gates = gates
        self.follower: Linear | None = None
        self.op = "gemm.linear"
        self.placement = placement
        self.method = "dense"
        self.weight: Weight | None = None
        self.selection: Selection | None = None
        self.call: Callable[..., torch.Tensor] = _unloaded
        self._options: dict[str, object] = {}
        self._norm: dict[str, object] = {}
        self._joint: Selection | None = None
        self._plain: Callable[..., torch.Tensor] = _unloaded
        self._joined: Callable[..., tuple[torch.Tensor, torch.Tensor | None]] | None = None

    def take(self, hidden: torch.Tensor, normed: torch.Tensor | None) -> torch.Tensor:
        """The product of the residual stream, whose norm the layer before may have done."""
        return self.call(hidden) if normed is None else self._plain(normed)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The residual stream after this layer, and its norm for the follower if that came with it."""
        if self._joined is None:
            return self.call(x, residual=residual), None
        return self._joined(x, residual=residual)

    def join(self) -> None:
        """Once this layer and its follower are loaded: lets `add` do the follower's norm, where a kernel can."""
        if self._joint is not None and self.follower is not None:
            self._joined = partial(self._joint.fn, **self._options, **self.follower._norm)

    @property
    def shape(self) -> tuple[int, int]:
        """[N, K] of the fused matrix."""
        return sum(self.out_features), self.in_features

    def tensors(self) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        for name, rows in zip(self.names, self.out_features, strict=True):
            if not self.tied:
                found[f"{name}.weight"] = (rows, self.in_features)
            if self.has_bias:
                found[f"{name}.bias"] = (rows,)
        if self.norm_name:
            found[f"{self.norm_name}.weight"] = (self.in_features,)
        return found

    def plan(self, source: WeightSource) -> None:
        if not self.tied:
            self._settle(settle_method(self.site, "gemm.linear", self.traits, stored_method(source, self.names)))

    def load(self, source: WeightSource) -> None:
        if not self.tied:
            self.use(
                read_weight(self.site, source, self.names, self.out_features, self.in_features, self.method), source
            )

    def share(self, method: str) -> None:
        """Plans a tied head: the embedding loads the weight, holds it as `method` and passes it to `use`."""
        self._settle(method)

    def use(self, weight: Weight, source: WeightSource) -> None:
        """Takes a weight already read, reads bias and norm, and binds the kernel."""
        assert self.selection is not None, "plan() comes first"
        self.weight = self.selection.prepare(weight)
        options: dict[str, object] = {"weight": self.weight}
        if self.has_bias:
            options["bias"] = read_vector(self.site, source, [f"{name}.bias" for name in self.names], self.out_features)
        if self.norm_name:
            gain = read_vector(self.site, source, [f"{self.norm_name}.weight"], (self.in_features,))
            self._norm = {"norm": gain, "eps": self.eps}
        if self.act and not self.gated_before:
            options["act"] = self.act
        self._options = options
        self._plain = partial(self.selection.fn, **options)
        self.call = partial(self.selection.fn, **options, **self._norm)

    def uses(self) -> list[KernelUse]:
        assert self.selection is not None, "plan() comes first"
        chosen = [(self.op, self.selection)] + ([("gemm.add_norm", self._joint)] if self._joint is not None else [])
        return [KernelUse(self.role, op, self.method, self.shape, 1, selection) for op, selection in chosen]

    @property
    def weight_bytes(self) -> int:
        if self.weight is not None:
            return self.weight.nbytes
        return planned_bytes(self.shape, self.method, self.site.dtype)

    @property
    def traits(self) -> dict[str, TraitValue]:
        """What kernels may look at to accept or refuse this call site."""
        rows, columns = self.shape
        return {
            "n": rows,
            "k": columns,
            "bias": self.has_bias,
            "norm": bool(self.norm_name),
            "act": (self.act or "") if not self.gated_before else "",
            "residual": self.has_residual,
        }

    def _settle(self, method: str) -> None:
        self.method = method
        found = None
        if self.gates is not None and not self.has_bias:
            found = self.site.fused("gemm.gated", self.traits, method)
        if found is not None and self.gates is not None:
            self.op = "gemm.gated"
            self.gates.gated_before = True
        self.selection = found or self.site.select("gemm.linear", self.traits, method)
        if self.has_residual and self.follower is not None and self.follower.norm_name:
            joint = self.site.fused("gemm.add_norm", self.traits, method)
            fits = joint is not None and joint.spec.name == self.selection.spec.name
            self._joint = joint if fits else None


def _unloaded(*_: object, **__: object) -> torch.Tensor:
    raise AssertionError("a layer was called before its weights were loaded")
