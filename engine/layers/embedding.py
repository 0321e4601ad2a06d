"""The token embedding, and the vocabulary head that may share its table."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from tsd.engine.layers.linear import Linear
from tsd.engine.layers.loading import planned_bytes, read_weight, settle_method, stored_method
from tsd.engine.layers.site import KernelUse, Layer, Placement, Site
from tsd.engine.weights.source import WeightSource
from tsd.kernels.spec import Selection, TraitValue
from tsd.kernels.weight import Weight


class Embedding(Layer):
    """Rows of a [vocabulary, hidden] table. With `tied`, that Linear's weight is this table, held once if it can be."""

    def __init__(self, site: Site, role: str, name: str, vocab: int, hidden: int, tied: Linear | None = None) -> None:
        self.site = site
        self.role = role
        self.name = name
        self.vocab = vocab
        self.hidden = hidden
        self.tied = tied
        self.placement = Placement.VOCAB
        self.method = "dense"
        self.weight: Weight | None = None
        self.selection: Selection | None = None
        self.call: Callable[[torch.Tensor], torch.Tensor]

    def tensors(self) -> dict[str, tuple[int, ...]]:
        return {f"{self.name}.weight": (self.vocab, self.hidden)}

    def plan(self, source: WeightSource) -> None:
        traits: dict[str, TraitValue] = {"n": self.vocab, "k": self.hidden}
        stored = stored_method(source, (self.name,))
        # The table follows the head, which reads all of it each step; alone it is packed only if the file has it so.
        if self.tied is not None:
            self.method = settle_method(self.site, "gemm.linear", self.tied.traits, stored)
            self.tied.share(self.method)
        elif self.site.quantization == "auto" and stored != "dense":
            self.method = settle_method(self.site, "embedding.lookup", traits, stored)
        self.selection = self.site.select("embedding.lookup", traits, self.method)

    def load(self, source: WeightSource) -> None:
        assert self.selection is not None, "plan() comes first"
        table = read_weight(self.site, source, (self.name,), (self.vocab,), self.hidden, self.method)
        if self.tied is not None:
            self.tied.use(table, source)
            if self.selection.spec.prepare and self.tied.weight is not None:
                table = self.tied.weight  # where both kernels read one layout, it is packed and held once
        self.weight = self.selection.prepare(table)
        self.call = partial(self.selection.fn, weight=self.weight, dtype=self.site.dtype)

    def uses(self) -> list[KernelUse]:
        assert self.selection is not None, "plan() comes first"
        shape = (self.vocab, self.hidden)
        return [KernelUse(self.role, "embedding.lookup", self.method, shape, 1, self.selection)]

    @property
    def weight_bytes(self) -> int:
        """Nothing where the tied head holds the same tensors."""
        if self.tied is None:
            held = self.weight.nbytes if self.weight is not None else None
            return held if held is not None else planned_bytes((self.vocab, self.hidden), self.method, self.site.dtype)
        if self.weight is None or self.tied.weight is None:
            return 0
        shared = {tensor.data_ptr() for tensor in self.tied.weight.tensors.values()}
        return sum(t.nbytes for t in self.weight.tensors.values() if t.data_ptr() not in shared)
