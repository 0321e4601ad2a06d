"""Rope, KV write and paged attention in plain torch, any dtype and device. Knows ForwardBatch's fields, no model."""

from __future__ import annotations

from typing import Protocol

import torch

from tsd.kernels.norm.reference import rms


class PagedBatch(Protocol):
    """The fields of `engine.batch.ForwardBatch` that attention reads (kernels import nothing of the engine)."""

    positions: torch.Tensor
    kv_slots: torch.Tensor
    query_start: torch.Tensor
    kv_lens: torch.Tensor
    page_table: torch.Tensor
    num_decode: int
    num_rows: int
    max_query_len: int
    max_kv_len: int
    page_size: int
    plans: object
    """What the chosen kernel planned for the step on the host, if it plans; see `spec.KernelSpec.plans`."""


def apply_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotates the first R dimensions of x [T, H, D] by cos, sin [T, R/2]: dimension i pairs with i + R/2.

    The rest, if any, passes through. float32 inside; the result has x's dtype.
    """
    half = cos.shape[-1]
    first = x[..., :half].to(torch.float32)
    second = x[..., half : 2 * half].to(torch.float32)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
    return torch.cat((turned, x[..., 2 * half :]), dim=-1)


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
) -> torch.Tensor:
    """Splits qkv [T, (num_q + 2 num_kv) head_dim], norms q and k per head if asked, ropes them, writes K and V.

    K and V go to batch.kv_slots of the caches [pages, page_size, num_kv, head_dim]; slot -1 writes nothing.
    cos_sin [max_pos, R] float32 holds R/2 cosines then R/2 sines, R <= head_dim. Returns q [T, num_q, head_dim].
    """
    tokens = qkv.shape[0]
    heads = qkv.view(tokens, num_q + 2 * num_kv, head_dim)
    q, k, v = heads.split((num_q, num_kv, num_kv), dim=1)
    if q_norm is not None:
        q = rms(q, q_norm, eps)
    if k_norm is not None:
        k = rms(k, k_norm, eps)
    cos, sin = cos_sin[batch.positions.to(torch.int64)].chunk(2, dim=-1)
    q = apply_rope(q, cos, sin)
    k = apply_rope(k, cos, sin)
    slots = batch.kv_slots.to(torch.int64)
    kept = (slots >= 0).nonzero().squeeze(1)
    k_cache.view(-1, num_kv, head_dim)[slots[kept]] = k[kept].to(k_cache.dtype)
    v_cache.view(-1, num_kv, head_dim)[slots[kept]] = v[kept].to(v_cache.dtype)
    return q.contiguous()


def rope_decode(
    qkv: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    batch: PagedBatch,
    cos_sin: torch.Tensor,
    scale: float,
    *,
    num_q: int,
    num_kv: int,
    head_dim: int,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 0.0,
) -> torch.Tensor:
    """`rope_write`, then `paged`, for a batch whose rows all have one token: [T, num_q * head_dim]."""
    heads = {"num_q": num_q, "num_kv": num_kv, "head_dim": head_dim}
    q = rope_write(qkv, k_cache, v_cache, batch, cos_sin, **heads, q_norm=q_norm, k_norm=k_norm, eps=eps)
    return paged(q, k_cache, v_cache, batch, scale)


def paged(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, batch: PagedBatch, scale: float
) -> torch.Tensor:
    """Causal attention of q [T, Hq, D] over each row's pages -> [T, Hq * D] in q's dtype; float32 inside.

    A token at position p sees cache positions 0..p of its row. Query head h reads KV head h // (Hq / Hkv).
    """
    tokens, num_q, head_dim = q.shape
    page_size, num_kv = k_cache.shape[1], k_cache.shape[2]
    out = torch.zeros_like(q)
    starts = batch.query_start.tolist()
    lens = batch.kv_lens.tolist()
    for row in range(batch.num_rows):
        begin, end, length = starts[row], starts[row + 1], lens[row]
        if begin == end:
            continue
        pages = batch.page_table[row, : -(-length // page_size)].to(torch.int64)
        k = k_cache[pages].reshape(-1, num_kv, head_dim)[:length].to(torch.float32)
        v = v_cache[pages].reshape(-1, num_kv, head_dim)[:length].to(torch.float32)
        k = k.repeat_interleave(num_q // num_kv, dim=1)
        v = v.repeat_interleave(num_q // num_kv, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q[begin:end].to(torch.float32), k) * scale
        seen = torch.arange(length, device=q.device)[None, :] <= batch.positions[begin:end].to(torch.int64)[:, None]
        scores = scores.masked_fill(~seen, float("-inf"))
        out[begin:end] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).to(q.dtype)
    return out.view(tokens, num_q * head_dim)
