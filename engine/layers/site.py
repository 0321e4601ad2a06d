"""What every layer is told about where it will run, and what it tells in return. Knows no model and no batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import torch

from tsd.engine.weights.source import WeightSource
from tsd.kernels.registry import select
from tsd.kernels.spec import NoKernel, Priority, Selection, TraitValue

QUANTIZED = ("int8", "q8_0", "q4_1")
"""Methods that dense weights can be rounded to at load."""
QUANTIZATIONS = ("auto", "none", *QUANTIZED)


class Placement(Enum):
    """How a weight is spread over the ranks of its group. Nothing reads it yet: one rank holds everything."""

    REPLICATED = "replicated"
    COLUMN = "column"
    """Outputs are sharded: q, k, v, gate, up."""
    ROW = "row"
    """Inputs are sharded and outputs are partial sums: attention output, down."""
    VOCAB = "vocab"
    """Rows of the vocabulary are sharded."""


@dataclass(frozen=True)
class Site:
    """One engine's device, number formats and kernel preferences."""

    dtype: torch.dtype
    device: torch.device
    quantization: str = "auto"
    """auto: packed weights stay packed where a kernel above the reference reads them; none: never; or a method."""
    objective: str = "latency"
    overrides: Mapping[str, str] = field(default_factory=dict)
    """Operation or family to kernel or solution, e.g. {"gemm": "torch"}."""
    kv_dtype: torch.dtype | None = None
    """None: the model's dtype."""

    def select(self, op: str, traits: Mapping[str, TraitValue], method: str = "", *, override: str = "") -> Selection:
        """The kernel for `op` here, or the one named. Raises KernelError where none can serve."""
        return select(
            op,
            dtype=self.dtype,
            device=self.device,
            weight_method=method,
            traits=traits,
            objective=self.objective,
            override=override,
            config=self.overrides,
        )

    def fused(self, op: str, traits: Mapping[str, TraitValue], method: str = "") -> Selection | None:
        """A kernel for an operation that joins several steps, if there is one above the reference."""
        try:
            found = self.select(op, traits, method)
        except NoKernel:
            return None
        return found if found.spec.priority > Priority.REFERENCE else None

    def gains(self, op: str, traits: Mapping[str, TraitValue], method: str) -> bool:
        """Whether a kernel reads weights packed as `method`; the reference, which unpacks them each time, is none."""
        return self.select(op, traits, method).spec.priority > Priority.REFERENCE


class KernelUse(NamedTuple):
    """One kernel choice of a model, for `tsd kernels` and the console."""

    role: str
    """The layer's part in the model: qkv, attention_out, lm_head, …"""
    op: str
    method: str
    """How the weight is stored: dense, q4_1, …; empty where there is none."""
    shape: tuple[int, ...]
    sites: int
    """Layers that made this same choice."""
    selection: Selection


class Layer(ABC):
    """A part of a model with weights of its own: tells their names, loads them, then binds its kernels."""

    role: str

    @abstractmethod
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Hugging Face tensor name to shape, of everything this layer loads."""

    @abstractmethod
    def plan(self, source: WeightSource) -> None:
        """Settles number formats and kernels from what the source holds, without reading any weight."""

    @abstractmethod
    def load(self, source: WeightSource) -> None:
        """Reads the weights and makes the layer callable. Raises WeightsError."""

    @abstractmethod
    def uses(self) -> list[KernelUse]:
        """The kernels chosen in `plan`, each counted once."""

    @property
    @abstractmethod
    def weight_bytes(self) -> int:
        """Bytes of device memory the weights take: those planned before `load`, those held after it."""
