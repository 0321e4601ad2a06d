"""QK norm, rope and the KV write in one launch. One program per token and block of heads of one kind."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tsd.kernels.attention.reference import PagedBatch
from tsd.kernels.triton.pdl import start_next, wait_previous
from tsd.kernels.triton.target import dependent


@triton.jit
def _normed(x, weight, d, live, rstd, NORM: tl.constexpr):
    """x over its rms, cast, times the weight, cast: float32 values that x's type holds."""
    full = x.to(tl.float32)
    if NORM:
        gain = tl.load(weight + d, mask=live, other=0.0).to(tl.float32)
        full = ((full * rstd[:, None]).to(x.dtype).to(tl.float32) * gain[None, :]).to(x.dtype).to(tl.float32)
    return full


@triton.jit
def turned(heads, weight, cos_sin, position, d, live, D: tl.constexpr, R: tl.constexpr, eps, NORM: tl.constexpr):
    """Normed and roped heads [HB, DP] float32; dimension i < R/2 pairs with i + R/2, those from R on pass through.

    `position` is one of int64 for all heads, or [HB, 1].
    """
    HALF: tl.constexpr = R // 2
    x = tl.load(heads + d[None, :], mask=live[None, :], other=0.0)
    other = tl.where(d < HALF, d + HALF, tl.where(d < R, d - HALF, d))
    partner = tl.load(heads + other[None, :], mask=live[None, :], other=0.0)
    full = x.to(tl.float32)
    rstd = tl.rsqrt(tl.sum(full * full, 1) / D + eps)
    full = _normed(x, weight, d, live, rstd, NORM)
    pair = _normed(partner, weight, other, live, rstd, NORM)
    angle = tl.where(d < HALF, d, d - HALF)
    spins = d < R
    cells = cos_sin + position * R + angle[None, :]
    cos = tl.load(cells, mask=spins[None, :], other=1.0)
    sin = tl.load(cells + HALF, mask=spins[None, :], other=0.0)
    sin = tl.where((d < HALF)[None, :], -sin, sin)
    return full * cos + pair * sin


@triton.jit(do_not_specialize_on_alignment=["positions", "kv_slots"])
def rope_write_kernel(
    qkv,
    q,
    k_cache,
    v_cache,
    positions,
    kv_slots,
    cos_sin,
    q_norm,
    k_norm,
    eps,
    NQ: tl.constexpr,
    NKV: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    R: tl.constexpr,
    HB: tl.constexpr,
    Q_NORM: tl.constexpr,
    K_NORM: tl.constexpr,
    PDL: tl.constexpr,
):
    start_next(PDL)
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HB
    h = tl.arange(0, HB)
    d = tl.arange(0, DP)
    live = d < D
    position = tl.load(positions + token).to(tl.int64)
    slot = tl.load(kv_slots + token).to(tl.int64)
    wait_previous(PDL)
    heads = qkv + (token * (NQ + 2 * NKV) + head + h)[:, None] * D
    if head < NQ:
        out = turned(heads, q_norm, cos_sin, position, d, live, D, R, eps, Q_NORM)
        tl.store(q + (token * NQ + head + h)[:, None] * D + d[None, :], out.to(q.dtype.element_ty), mask=live[None, :])
    elif slot >= 0:
        if head < NQ + NKV:
            out = turned(heads, k_norm, cos_sin, position, d, live, D, R, eps, K_NORM)
            spot = k_cache + (slot * NKV + head - NQ + h)[:, None] * D + d[None, :]
            tl.store(spot, out.to(k_cache.dtype.element_ty), mask=live[None, :])
        else:
            value = tl.load(heads + d[None, :], mask=live[None, :], other=0.0)
            spot = v_cache + (slot * NKV + head - NQ - NKV + h)[:, None] * D + d[None, :]
            tl.store(spot, value.to(v_cache.dtype.element_ty), mask=live[None, :])


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
    """As `attention.reference.rope_write`."""
    tokens = qkv.shape[0]
    q = torch.empty((tokens, num_q, head_dim), dtype=qkv.dtype, device=qkv.device)
    block = 1
    while block < 8 and num_q % (2 * block) == 0 and num_kv % (2 * block) == 0:
        block *= 2
    pdl, launch = dependent(qkv.device)
    rope_write_kernel[(tokens, (num_q + 2 * num_kv) // block)](
        qkv,
        q,
        k_cache,
        v_cache,
        batch.positions,
        batch.kv_slots,
        cos_sin,
        q_norm if q_norm is not None else qkv,
        k_norm if k_norm is not None else qkv,
        eps,
        num_q,
        num_kv,
        head_dim,
        triton.next_power_of_2(head_dim),
        cos_sin.shape[1],
        block,
        q_norm is not None,
        k_norm is not None,
        PDL=pdl,
        num_warps=block,
        **launch,
    )
    return q
