"""Prefill by FlashAttention-3 beside our own decode. Knows the library's `flash_attn_with_kvcache` and no more of it.

The library reads lengths and page tables on the device, so that its launches may lie in a CUDA graph. Of a step that
also decodes it gets the rows after those that do.
"""

from __future__ import annotations

import torch
from flash_attn_interface import flash_attn_with_kvcache

from tsd.kernels.attention.longer import Longer, longer_rows
from tsd.kernels.attention.reference import PagedBatch
from tsd.kernels.triton import attention
from tsd.kernels.triton.decode import decode

TILE = 128
"""Queries (tokens times the heads that share a KV head) of one of its programs."""
PROGRAMS = 132
"""Programs that run at once: one to a multiprocessor of an H200."""
MOST_SPLITS = 4


def splits_for(tokens: int, num_q: int, num_kv: int) -> int:
    """In how many parts a row's keys may be read: enough to fill the GPU with a short chunk, one for long ones.

    The library decides on the device, by the rows' lengths, how many of them it uses; it never allocates for more.
    """
    programs = -(-tokens * (num_q // num_kv) // TILE) * num_kv
    return max(1, min(MOST_SPLITS, PROGRAMS // programs))


def prefill(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    rows: Longer,
    longest: int,
    scale: float,
    splits: int = 0,
) -> torch.Tensor:
    """Causal attention [T, Hq * D] of rows of at most `longest` tokens; other tokens' places are left as they are."""
    tokens, num_q, head_dim = q.shape
    if q.is_meta:  # kernels are only listed, and the library brings its own compiled
        return torch.empty((tokens, num_q * head_dim), dtype=q.dtype, device=q.device)
    out = flash_attn_with_kvcache(
        q,
        k_cache,
        v_cache,
        cache_seqlens=rows.kv_lens,
        page_table=rows.page_table,
        cu_seqlens_q=rows.query_start,
        max_seqlen_q=longest,
        softmax_scale=scale,
        causal=True,
        num_splits=splits or splits_for(tokens, num_q, k_cache.shape[2]),
    )
    return out.view(tokens, num_q * head_dim)


def paged(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, batch: PagedBatch, scale: float
) -> torch.Tensor:
    """As `attention.reference.paged`. As in `triton.attention.paged`, each kernel takes the rows of its kind."""
    if batch.max_query_len == 1:
        return attention.paged(q, k_cache, v_cache, batch, scale)
    every = Longer(batch.query_start, batch.kv_lens, batch.page_table)
    if batch.num_decode == 0:
        return prefill(q, k_cache, v_cache, every, batch.max_query_len, scale)
    rows = every if q.is_meta else longer_rows(batch)
    out = prefill(q, k_cache, v_cache, rows, batch.max_query_len, scale)
    decode(q, k_cache, v_cache, out, batch, scale)
    return out
