"""The reference operations against oracles that others wrote: gguf, transformers, numpy, torch's attention."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize as gguf_dequantize
from gguf.quants import quantize as gguf_quantize

from tsd.engine.batch import ForwardBatch
from tsd.kernels.attention.reference import paged, rope_write
from tsd.kernels.embedding.reference import lookup
from tsd.kernels.gemm.reference import linear
from tsd.kernels.norm.reference import rms
from tsd.kernels.weight import WeightError, concat_rows, dense, from_gguf, permute_rows, quantize


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_gguf_blocks_decode_as_gguf_does(kind: str) -> None:
    values = np.random.default_rng(1).standard_normal((6, 96)).astype(np.float32)
    form = GGMLQuantizationType[kind]
    blocks = gguf_quantize(values, form)
    weight = from_gguf(kind, blocks)
    assert weight.shape == (6, 96)
    expected = gguf_dequantize(blocks, form)
    np.testing.assert_allclose(weight.dequantize().numpy(), expected, rtol=0, atol=1e-6)
    ids = torch.tensor([5, 0, 5], dtype=torch.int32)
    assert torch.equal(lookup(ids, weight), weight.dequantize()[[5, 0, 5]])


@pytest.mark.parametrize("method", ["q8_0", "q4_1", "int8"])
def test_quantize_is_as_near_as_its_step(method: str) -> None:
    dense_values = torch.randn(9, 64)
    weight = quantize(dense_values, method)
    span = dense_values.abs().amax(dim=1, keepdim=True)
    step = span * 2 / 15 if method == "q4_1" else span / 127
    assert ((weight.dequantize() - dense_values).abs() <= step * 0.56).all()
    assert (quantize(torch.zeros(2, 32), method).dequantize() == 0).all()


def test_concat_and_permute_work_on_packed_rows() -> None:
    a, b = quantize(torch.randn(4, 64), "q4_1"), quantize(torch.randn(3, 64), "q4_1")
    both = concat_rows([a, b])
    assert torch.equal(both.dequantize(), torch.cat((a.dequantize(), b.dequantize())))
    order = torch.tensor([6, 0, 2])
    assert torch.equal(permute_rows(both, order).dequantize(), both.dequantize()[order])
    with pytest.raises(WeightError, match="cannot fuse"):
        concat_rows([a, quantize(torch.randn(3, 64), "q8_0")])


@pytest.mark.parametrize("bad", [lambda: from_gguf("Q9", np.zeros((1, 20), np.uint8)), lambda: dense(torch.zeros(3))])
def test_bad_weights(bad) -> None:
    with pytest.raises(WeightError):
        bad()
    with pytest.raises(WeightError):
        from_gguf("Q4_1", np.zeros((1, 21), np.uint8))
    with pytest.raises(WeightError):
        quantize(torch.zeros(2, 33), "q8_0")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norm_equals_transformers(dtype: torch.dtype) -> None:
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    module = LlamaRMSNorm(64, eps=1e-5).to(dtype)
    module.weight.data = torch.randn(64).to(dtype)
    x = torch.randn(5, 64).to(dtype)
    assert torch.equal(rms(x, module.weight.data, 1e-5), module(x))


def test_linear_does_its_steps() -> None:
    x, w, up = torch.randn(5, 32), torch.randn(7, 32), torch.randn(5, 32)
    norm, bias, residual = torch.randn(32), torch.randn(7), torch.randn(5, 7)
    y = linear(x, dense(w), bias=bias, norm=norm, eps=1e-6, residual=residual)
    torch.testing.assert_close(y, torch.nn.functional.rms_norm(x, (32,), norm, 1e-6) @ w.T + bias + residual)
    y = linear(torch.cat((x, up), dim=1), dense(w), act="silu_mul")
    torch.testing.assert_close(y, (torch.nn.functional.silu(x) * up) @ w.T)
    with pytest.raises(ValueError, match="gelu"):
        linear(x, dense(w), act="gelu")


def make_batch(lens: list[int], queries: list[int], page_size: int, pages: int) -> ForwardBatch:
    """Rows of `lens` cached tokens, the last `queries` of which are computed now, on shuffled pages."""
    width = max(-(-n // page_size) for n in lens)
    order = torch.randperm(pages)
    table = torch.zeros(len(lens), width, dtype=torch.int32)
    used = 0
    positions, slots = [], []
    for row, (length, count) in enumerate(zip(lens, queries, strict=True)):
        need = -(-length // page_size)
        table[row, :need] = order[used : used + need]
        used += need
        for position in range(length - count, length):
            positions.append(position)
            slots.append(int(table[row, position // page_size]) * page_size + position % page_size)
    starts = np.concatenate(([0], np.cumsum(queries)))
    total = int(starts[-1])
    return ForwardBatch(
        tokens=torch.zeros(total, dtype=torch.int32),
        positions=torch.tensor(positions, dtype=torch.int32),
        kv_slots=torch.tensor(slots, dtype=torch.int32),
        query_start=torch.tensor(starts, dtype=torch.int32),
        kv_lens=torch.tensor(lens, dtype=torch.int32),
        page_table=table,
        sample_index=torch.tensor(starts[1:] - 1, dtype=torch.int32),
        num_decode=sum(1 for n in queries if n == 1),
        num_rows=len(lens),
        max_query_len=max(queries),
        max_kv_len=max(lens),
        page_size=page_size,
    )


def test_rope_equals_transformers() -> None:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    batch = make_batch([5, 9], [1, 9], 4, 8)
    table = torch.outer(torch.arange(32.0), 10000 ** (-torch.arange(0, 16, 2) / 16))
    cos_sin = torch.cat((table.cos(), table.sin()), dim=1)
    qkv = torch.randn(10, (4 + 2 * 2) * 16)
    k_cache, v_cache = torch.zeros(8, 4, 2, 16), torch.zeros(8, 4, 2, 16)
    q = rope_write(qkv, k_cache, v_cache, batch, cos_sin, num_q=4, num_kv=2, head_dim=16)
    raw = qkv.view(10, 8, 16)
    full = torch.cat((table, table), dim=1)[batch.positions.long()]
    want_q, want_k = apply_rotary_pos_emb(
        raw[None, :, :4].transpose(1, 2), raw[None, :, 4:6].transpose(1, 2), full.cos()[None], full.sin()[None]
    )
    torch.testing.assert_close(q, want_q[0].transpose(0, 1))
    torch.testing.assert_close(k_cache.view(-1, 2, 16)[batch.kv_slots.long()], want_k[0].transpose(0, 1))
    assert torch.equal(v_cache.view(-1, 2, 16)[batch.kv_slots.long()], raw[:, 6:])
    batch.kv_slots.fill_(-1)
    untouched = torch.zeros_like(k_cache)
    rope_write(qkv, untouched, untouched, batch, cos_sin, num_q=4, num_kv=2, head_dim=16)
    assert (untouched == 0).all()


def test_paged_equals_torch_attention() -> None:
    lens, queries = [5, 40, 17], [1, 40, 6]
    batch = make_batch(lens, queries, 16, 9)
    k_cache, v_cache = torch.randn(9, 16, 2, 32), torch.randn(9, 16, 2, 32)
    q = torch.randn(47, 6, 32)
    out = paged(q, k_cache, v_cache, batch, 32**-0.5).view(47, 6, 32)
    for row, (length, count) in enumerate(zip(lens, queries, strict=True)):
        begin = int(batch.query_start[row])
        flat = [int(batch.page_table[row, p // 16]) * 16 + p % 16 for p in range(length)]
        k, v = k_cache.view(-1, 2, 32)[flat], v_cache.view(-1, 2, 32)[flat]
        mask = torch.ones(count, length).tril(length - count).bool()
        want = torch.nn.functional.scaled_dot_product_attention(
            q[begin : begin + count].transpose(0, 1)[None],
            k.transpose(0, 1)[None],
            v.transpose(0, 1)[None],
            attn_mask=mask,
            enable_gqa=True,
        )[0].transpose(0, 1)
        torch.testing.assert_close(out[begin : begin + count], want)
