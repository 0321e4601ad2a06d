"""What a forward pass is told about its batch. Models hand it through to attention and never look inside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class ForwardBatch:
    """One step's rows: first `num_decode` rows of one token each, then prefill chunks.

    T tokens in all, B rows, S of which are sampled. Integer tensors are int32 and live where the model lives.
    """

    tokens: torch.Tensor
    """[T] input ids."""
    positions: torch.Tensor
    """[T] position of each token in its sequence."""
    kv_slots: torch.Tensor
    """[T] where each token's K and V go: page * page_size + offset. -1 writes nothing (padding)."""
    query_start: torch.Tensor
    """[B + 1] first token of each row in T."""
    kv_lens: torch.Tensor
    """[B] tokens in the cache after this step, i.e. position of the row's last token + 1."""
    page_table: torch.Tensor
    """[B, P] physical page of each logical page; entries past kv_lens are unspecified but in range."""
    sample_index: torch.Tensor
    """[S] index in T of the tokens whose logits are wanted, in any order: but S = T means all of them, ascending."""
    num_decode: int
    num_rows: int
    max_query_len: int
    max_kv_len: int
    page_size: int
    plans: Any = None
    """What the chosen attention planned for the step on the host; None where it plans nothing."""
    before_layer: Callable[[int], None] | None = None
    """Called with each layer's number before its attention: waits until the layer's cached pages are in place."""


@dataclass
class KVCache:
    """The device tier: per layer one K and one V tensor of [num_pages, page_size, kv_heads, head_dim]."""

    k: list[torch.Tensor]
    v: list[torch.Tensor]
    page_size: int
    num_pages: int
