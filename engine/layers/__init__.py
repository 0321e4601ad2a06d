"""The layers that models are built from. They own number format, placement and kernel choice; models own the order."""

from __future__ import annotations

from tsd.engine.layers.attention import Attention
from tsd.engine.layers.embedding import Embedding
from tsd.engine.layers.linear import Linear
from tsd.engine.layers.site import KernelUse, Layer, Placement, Site

__all__ = ["Attention", "Embedding", "KernelUse", "Layer", "Linear", "Placement", "Site"]
