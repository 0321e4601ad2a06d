"""Types of the compiled module; see native.pyx."""

from typing import Literal

import torch

from tsd.kernels.attention.reference import PagedBatch
from tsd.kernels.sampling.types import SamplingState
from tsd.kernels.weight import Weight

Isa = Literal["plain", "avx2", "avx512"]
ISAS: tuple[Isa, ...]

class Packed:
    weight: Weight
    def __init__(self, weight: Weight) -> None: ...

def prepare(weight: Weight) -> Weight: ...
def best_isa() -> Isa: ...
def set_threads(threads: int) -> int: ...
def get_threads() -> int: ...
def linear(
    x: torch.Tensor,
    weight: Weight,
    *,
    bias: torch.Tensor | None = None,
    norm: torch.Tensor | None = None,
    eps: float = 0.0,
    act: str | None = None,
    residual: torch.Tensor | None = None,
    isa: Isa | None = None,
) -> torch.Tensor: ...
def rms(x: torch.Tensor, weight: torch.Tensor, eps: float, *, isa: Isa | None = None) -> torch.Tensor: ...
def lookup(ids: torch.Tensor, weight: Weight, *, dtype: torch.dtype = ..., isa: Isa | None = None) -> torch.Tensor: ...
def rope_write(
    qkv: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    batch: PagedBatch,
    cos_sin: torch.Tensor,
    *,
    num_q: int,
    num_kv: int,
    head_dim: int,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 0.0,
    isa: Isa | None = None,
) -> torch.Tensor: ...
def paged(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    batch: PagedBatch,
    scale: float,
    *,
    isa: Isa | None = None,
) -> torch.Tensor: ...
def draw(scores: torch.Tensor, state: SamplingState, *, isa: Isa | None = None) -> torch.Tensor: ...
