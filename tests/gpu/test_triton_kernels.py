"""The compiled Triton kernels against the reference operations in float32, at the sizes of real models."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

from tsd.kernels.attention import reference as attention_reference  # noqa: E402
from tsd.kernels.gemm import reference as gemm_reference  # noqa: E402
from tsd.kernels.norm import reference as norm_reference  # noqa: E402
from tsd.kernels.sampling import reference as sampling_reference  # noqa: E402
from tsd.kernels.sampling.types import SamplingState, greedy_state  # noqa: E402
from tsd.kernels.triton import attention, decode, embedding, invariant, linear, norm, rope, sampling  # noqa: E402
from tsd.kernels.triton.merge_norm import merge_kernel  # noqa: E402
from tsd.kernels.triton.workspace import workspace  # noqa: E402
from tsd.kernels.weight import dense  # noqa: E402

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
NEAR = {BF16: 1e-2, FP16: 2e-3, FP32: 2e-5}
"""Largest relative error, ‖got - wanted‖ / ‖wanted‖."""


def normal(*shape: int, dtype: torch.dtype = BF16, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(shape, device="cuda") * scale).to(dtype)


def near(got: torch.Tensor, wanted: torch.Tensor, bound: float = 0.0) -> None:
    limit = bound or NEAR[got.dtype]
    error = (got.double() - wanted.double()).norm() / wanted.double().norm()
    assert error < limit, f"relative error {error:.2e}"


def ragged_batch(query_lens: list[int], kv_lens: list[int], page_size: int, num_decode: int) -> SimpleNamespace:
    """Rows on shuffled pages; also `pages`, how many there are."""
    counts = [-(-length // page_size) for length in kv_lens]
    order = torch.randperm(sum(counts), dtype=torch.int32)
    table = torch.zeros((len(kv_lens), max(counts) + 3), dtype=torch.int32)
    used = 0
    positions, slots = [], []
    for row, (query, length, count) in enumerate(zip(query_lens, kv_lens, counts, strict=True)):
        table[row, :count] = order[used : used + count]
        used += count
        places = torch.arange(length - query, length)
        positions.append(places)
        slots.append(table[row, places // page_size] * page_size + places % page_size)
    starts = torch.tensor([0, *query_lens]).cumsum(0)
    return SimpleNamespace(
        positions=torch.cat(positions).int().cuda(),
        kv_slots=torch.cat(slots).int().cuda(),
        query_start=starts.int().cuda(),
        kv_lens=torch.tensor(kv_lens, dtype=torch.int32, device="cuda"),
        page_table=table.cuda(),
        num_decode=num_decode,
        num_rows=len(kv_lens),
        max_query_len=max(query_lens),
        max_kv_len=max(kv_lens),
        page_size=page_size,
        pages=sum(counts),
    )


def float_linear(x: torch.Tensor, w: torch.Tensor, **options: object) -> torch.Tensor:
    wide = {name: value.float() if isinstance(value, torch.Tensor) else value for name, value in options.items()}
    return gemm_reference.linear(x.float(), dense(w.float()), **wide)


@pytest.mark.parametrize("dtype", [BF16, FP16, FP32])
@pytest.mark.parametrize("rows", [1, 2, 33, 64, 200])
@pytest.mark.parametrize("n, k", [(1024, 3072), (4096, 1024)])
def test_linear(dtype: torch.dtype, rows: int, n: int, k: int) -> None:
    w = normal(n, k, dtype=dtype, scale=k**-0.5)
    x, residual, gain = normal(rows, k, dtype=dtype), normal(rows, n, dtype=dtype), normal(k, dtype=dtype)
    near(linear.linear(x, dense(w), residual=residual.clone()), float_linear(x, w, residual=residual))
    near(linear.linear(x, dense(w), norm=gain, eps=1e-6), float_linear(x, w, norm=gain, eps=1e-6))
    near(invariant.linear(x, dense(w), norm=gain, eps=1e-6), float_linear(x, w, norm=gain, eps=1e-6))
    bias, both = normal(n, dtype=dtype), normal(rows, 2 * k, dtype=dtype)
    wanted = float_linear(both, w, act="silu_mul", bias=bias, residual=residual)
    near(linear.linear(both, dense(w), act="silu_mul", bias=bias, residual=residual), wanted)  # gives residual up
    assert not workspace(x.device).counters.any()


@pytest.mark.parametrize("rows", [1, 5, 64, 100])
def test_gated(rows: int) -> None:
    n, k = 3072, 1024
    w, x, gain = normal(2 * n, k, scale=k**-0.5), normal(rows, k), normal(k)
    both = float_linear(x, w, norm=gain, eps=1e-6)
    near(linear.gated(x, dense(w), norm=gain, eps=1e-6), torch.nn.functional.silu(both[:, :n]) * both[:, n:])


def test_tilings_agree() -> None:
    """Each kind of tiling, partial sums along K included, is the same function."""
    n, k = 1000, 2048
    w, gain = normal(n, k, scale=k**-0.5), normal(k)
    for rows, plan in (
        (1, linear.Gemv(4, 1024, 4)),
        (1, linear.Gemv(2, 2048, 2)),
        (7, linear.Skinny(16, 128, 4, 4, 4, 256)),
        (40, linear.Skinny(32, 64, 2, 4, 5, 256)),
        (64, linear.Skinny(64, 128, 1, 4, 4, 256)),
        (200, linear.Tile(64, 128, 64, 1, 4, 4)),
        (130, linear.Tile(64, 64, 128, 4, 4, 3)),
    ):
        x = normal(rows, k)
        y = torch.full((rows, n), float("nan"), device="cuda", dtype=BF16)
        linear.launch(plan, x, w, y, bias=None, norm=gain, eps=1e-6, act=False, residual=None, gated=False)
        near(y, float_linear(x, w, norm=gain, eps=1e-6))


@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize(
    "rows, plan",
    [
        (2, linear.Slab(64, 128, 1, 8)),
        (7, linear.Slab(64, 64, 4, 4)),
        (17, linear.Slab(64, 128, 2, 4)),
        (33, linear.Slab(128, 64, 1, 5)),
        (64, linear.Slab(64, 128, 1, 2)),
        (100, linear.Slab(64, 64, 2, 4, 64)),
    ],
)
def test_slabs(rows: int, plan: linear.Slab, dtype: torch.dtype) -> None:
    """All of K in shared memory or a ring of tiles, whole or in parts, ragged N: the same function, the same bits."""
    n, k = 1000, 1024
    w, x, residual = (
        normal(n, k, dtype=dtype, scale=k**-0.5),
        normal(rows, k, dtype=dtype),
        normal(rows, n, dtype=dtype),
    )
    bias = normal(n, dtype=dtype)
    y = torch.full((rows, n), float("nan"), device="cuda", dtype=dtype)
    options: dict[str, Any] = {"norm": None, "eps": 0.0, "act": False}
    linear.launch(plan, x, w, y, bias=bias, residual=residual, gated=False, **options)
    near(y, float_linear(x, w, bias=bias, residual=residual))
    first = y.clone()
    for _ in range(20):
        linear.launch(plan, x, w, y, bias=bias, residual=residual, gated=False, **options)
        assert torch.equal(y, first)
    both = normal(2 * n, k, dtype=dtype, scale=k**-0.5)
    linear.launch(plan, x, both, y, bias=None, residual=None, gated=True, **options)
    gate, up = float_linear(x, both).chunk(2, dim=-1)
    near(y, torch.nn.functional.silu(gate) * up)
    assert not workspace(x.device).counters.any()


@pytest.mark.parametrize("rows", [1, 2, 16, 31, 64, 100, 129])
@pytest.mark.parametrize("n, k", [(1024, 3072), (1024, 2048)])
def test_add_norm(rows: int, n: int, k: int) -> None:
    """The residual stream is the same with its norm and without; the norm is that of the stream as it was stored."""
    w, x, residual, gain = normal(n, k, scale=k**-0.5), normal(rows, k), normal(rows, n), normal(n)
    hidden, normed = linear.add_norm(x, dense(w), residual=residual.clone(), norm=gain, eps=1e-6)
    near(hidden, float_linear(x, w, residual=residual))
    if normed is not None:
        near(normed, norm_reference.rms(hidden, gain, 1e-6), 4e-3)
    joined = torch.cuda.get_device_name() == "NVIDIA H200" and 1 < rows <= 128
    assert (normed is not None) == joined


@pytest.mark.parametrize("parts, columns", [(1, 64), (6, 128)])
def test_sums_meet_their_norm(parts: int, columns: int) -> None:
    rows, n = 5, 1024
    partial = torch.randn(parts, n // columns, 16, columns, device="cuda")
    residual, gain = normal(rows, n), normal(n)
    hidden, normed = torch.empty_like(residual), torch.empty_like(residual)
    merge_kernel[(rows,)](
        partial, residual, gain, hidden, normed, n, 1e-6, BM=16, BN=columns, SPLIT=parts, COLUMNS=n, PDL=False
    )
    wanted = residual.float() + partial.sum(0)[:, :rows].transpose(0, 1).reshape(rows, n)
    near(hidden, wanted, 4e-3)
    near(normed, norm_reference.rms(hidden, gain, 1e-6), 4e-3)


@pytest.mark.parametrize("rows, tile", [(300, (64, 128, 64, 1, 8, 4)), (129, (128, 64, 64, 2, 8, 3))])
def test_tiles_gate_and_add(rows: int, tile: tuple[int, ...]) -> None:
    """Ragged edges in both directions; twice the same bits though programs share a tile."""
    n, k = 1000, 2048
    w, x, gain, residual = normal(2 * n, k, scale=k**-0.5), normal(rows, k), normal(k), normal(rows, n)
    both = float_linear(x, w, norm=gain, eps=1e-6)
    plan, options = linear.Tile(*tile), {"bias": None, "eps": 1e-6, "act": False}
    found = []
    for _ in range(3):
        y = torch.full((rows, n), float("nan"), device="cuda", dtype=BF16)
        linear.launch(plan, x, w, y, norm=gain, residual=None, gated=True, **options)
        found.append(y)
    near(found[0], torch.nn.functional.silu(both[:, :n]) * both[:, n:])
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    half = w[:n].contiguous()
    y = torch.full((rows, n), float("nan"), device="cuda", dtype=BF16)
    linear.launch(plan, x, half, y, norm=None, residual=residual, gated=False, **options)
    near(y, float_linear(x, half, residual=residual))
    assert not workspace(x.device).counters.any()


def test_norm_and_embedding() -> None:
    for width in (128, 1024, 4096, 5120):
        x, gain = normal(9, width), normal(width)
        near(norm.rms(x, gain, 1e-6), norm_reference.rms(x, gain, 1e-6), 4e-3)
        near(norm.silu_mul(x), torch.nn.functional.silu(x[:, : width // 2].float()) * x[:, width // 2 :].float())
        ids = torch.tensor([3, 0, 8], dtype=torch.int32, device="cuda")
        assert torch.equal(embedding.lookup(ids, dense(x)), x[ids.long()])


@pytest.mark.parametrize("num_q, num_kv, head_dim", [(16, 8, 128), (32, 8, 128), (9, 3, 64)])
def test_rope_write(num_q: int, num_kv: int, head_dim: int) -> None:
    batch = ragged_batch([1, 20], [70, 25], 16, 1)
    batch.kv_slots[3] = -1
    qkv = normal(21, (num_q + 2 * num_kv) * head_dim)
    angles = torch.rand(128, head_dim // 2, device="cuda") * 6
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1)
    options = {"num_q": num_q, "num_kv": num_kv, "head_dim": head_dim, "eps": 1e-6}
    gains = {"q_norm": normal(head_dim), "k_norm": normal(head_dim)}
    caches = [torch.zeros(batch.pages, 16, num_kv, head_dim, device="cuda", dtype=BF16) for _ in range(4)]
    got = rope.rope_write(qkv, caches[0], caches[1], batch, cos_sin, **options, **gains)
    near(got, attention_reference.rope_write(qkv, caches[2], caches[3], batch, cos_sin, **options, **gains), 4e-3)
    near(caches[0], caches[2], 4e-3)
    assert torch.equal(caches[1], caches[3])


@pytest.mark.parametrize("num_q, num_kv, page_size", [(16, 8, 64), (32, 8, 16)])
def test_rope_decode(num_q: int, num_kv: int, page_size: int) -> None:
    """The fused launch gives the bits of rope_write and decode one after the other."""
    lengths = [300, 1, 64, 4000, 129]
    batch = ragged_batch([1] * 5, lengths, page_size, 5)
    batch.kv_slots[2] = -1
    qkv = normal(5, (num_q + 2 * num_kv) * 128)
    angles = torch.rand(4096, 64, device="cuda") * 6
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1)
    options = {"num_q": num_q, "num_kv": num_kv, "head_dim": 128, "eps": 1e-6}
    gains = {"q_norm": normal(128), "k_norm": normal(128)}
    mine = normal(2, batch.pages, page_size, num_kv, 128)
    theirs = mine.clone()
    got = decode.rope_decode(qkv, mine[0], mine[1], batch, cos_sin, 0.1, **options, **gains)
    q = rope.rope_write(qkv, theirs[0], theirs[1], batch, cos_sin, **options, **gains)
    wanted = attention_reference.paged(q.float(), theirs[0].float(), theirs[1].float(), batch, 0.1)
    near(got, wanted)
    assert torch.equal(mine, theirs)


@pytest.mark.parametrize("rows", [32, 40])
@pytest.mark.parametrize("num_q, num_kv, page_size", [(16, 8, 64), (32, 8, 16), (9, 3, 64)])
def test_shared_prefixes(num_q: int, num_kv: int, page_size: int, rows: int) -> None:
    """Rows most of which are on one prefix of 1,024 keys, in one launch from the projection and in a mixed batch."""
    lengths = [1100 + 37 * row for row in range(rows)]
    batch = ragged_batch([1] * rows, lengths, page_size, rows)
    shared = [row for row in range(rows) if row % 7]
    batch.page_table[shared, : 1024 // page_size] = batch.page_table[1, : 1024 // page_size]
    qkv = normal(rows, (num_q + 2 * num_kv) * 128)
    angles = torch.rand(4096, 64, device="cuda") * 6
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1)
    options = {"num_q": num_q, "num_kv": num_kv, "head_dim": 128, "eps": 1e-6}
    gains = {"q_norm": normal(128), "k_norm": normal(128)}
    mine = normal(2, batch.pages, page_size, num_kv, 128)
    theirs = mine.clone()
    got = decode.rope_decode(qkv, mine[0], mine[1], batch, cos_sin, 0.1, **options, **gains)
    q = rope.rope_write(qkv, theirs[0], theirs[1], batch, cos_sin, **options, **gains)
    assert torch.equal(mine, theirs)
    assert (batch.common.rows > 0).sum() >= 0.8 * rows
    wanted = attention_reference.paged(q.float(), theirs[0].float(), theirs[1].float(), batch, 0.1)
    near(got, wanted)
    near(attention.paged(q, theirs[0], theirs[1], batch, 0.1), wanted)


CASES = {
    "decode": ([1, 1, 1, 1, 1], [300, 1, 64, 4000, 129], 5),
    "prefill": ([700, 5], [700, 2000], 0),
    "mixed": ([1, 1, 400, 1, 33], [150, 3000, 900, 1, 33], 2),
}


@pytest.mark.parametrize("case", list(CASES))
@pytest.mark.parametrize("dtype", [BF16, FP16, FP32])
@pytest.mark.parametrize("num_q, num_kv, head_dim, page_size", [(16, 8, 128, 64), (32, 8, 128, 16), (9, 3, 64, 64)])
def test_paged(case: str, dtype: torch.dtype, num_q: int, num_kv: int, head_dim: int, page_size: int) -> None:
    query_lens, kv_lens, num_decode = CASES[case]
    batch = ragged_batch(query_lens, kv_lens, page_size, num_decode)
    q = normal(sum(query_lens), num_q, head_dim, dtype=dtype)
    caches = normal(2, batch.pages, page_size, num_kv, head_dim, dtype=dtype)
    wanted = attention_reference.paged(q.float(), caches[0].float(), caches[1].float(), batch, head_dim**-0.5)
    near(attention.paged(q, caches[0], caches[1], batch, head_dim**-0.5), wanted)
    near(attention.paged_invariant(q, caches[0], caches[1], batch, head_dim**-0.5), wanted)
    assert not workspace(q.device).counters.any()


@pytest.mark.parametrize("num_q, num_kv, page_size", [(16, 8, 64), (32, 8, 16), (9, 3, 64)])
@pytest.mark.parametrize("programs, beside", [(264, 128), (50, 50), (264, 1)])
def test_chunks(num_q: int, num_kv: int, page_size: int, programs: int, beside: int) -> None:
    """Tiles that many programs share and programs with many tiles: the bits are the same each time."""
    batch = ragged_batch([1, 230, 1, 70, 33], [150, 3300, 3000, 70, 900], page_size, 5)
    q = normal(335, num_q, 128)
    caches = normal(2, batch.pages, page_size, num_kv, 128)
    wanted = attention_reference.paged(q.float(), caches[0].float(), caches[1].float(), batch, 0.1)
    longer = torch.ones(335, dtype=torch.bool, device="cuda")
    longer[[0, 231]] = False
    for late, singles in ((True, False), (False, True)):
        found = []
        for _ in range(3):
            out = torch.full((335, num_q * 128), float("nan"), dtype=BF16, device="cuda")
            cut = {"programs": programs, "beside": beside}
            attention.chunks(q, caches[0], caches[1], out, batch, 0.1, late=late, singles=singles, **cut)
            found.append(out if singles else out[longer])
        near(found[0], wanted if singles else wanted[longer])
        assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    assert not workspace(q.device, "chunks").counters.any()


def test_invariant_bits() -> None:
    """A row's bits do not depend on its neighbours, on how many there are, nor on decode or prefill."""
    for n, k in ((4096, 2048), (6144, 1024)):
        w, x = normal(n, k, scale=k**-0.5), normal(300, k)
        tiles = {invariant.tile_for(rows, n, BF16) for rows in (1, 64, 287, 300)}
        assert len(tiles) > 1
        whole = invariant.linear(x, dense(w))
        for first, last in ((0, 1), (37, 38), (100, 164), (3, 290)):
            assert torch.equal(invariant.linear(x[first:last].contiguous(), dense(w)), whole[first:last])
    length = 600
    batch = ragged_batch([length], [length], 64, 0)
    q = normal(length, 16, 128)
    caches = normal(2, batch.pages, 64, 8, 128)
    whole = attention.paged_invariant(q, caches[0], caches[1], batch, 0.1)
    for first, last in ((599, 600), (0, 77), (77, 300), (511, 512)):
        part = SimpleNamespace(**vars(batch))
        part.query_start = torch.tensor([0, last - first], dtype=torch.int32, device="cuda")
        part.kv_lens = torch.tensor([last], dtype=torch.int32, device="cuda")
        part.max_query_len = last - first
        got = attention.paged_invariant(q[first:last].contiguous(), caches[0], caches[1], part, 0.1)
        assert torch.equal(got, whole[first:last]), (first, last)


def sampling_state(rows: int, **fields: object) -> SamplingState:
    state = greedy_state(rows, "cuda")
    state.greedy, state.filtered = False, True
    pattern = torch.arange(rows, device="cuda")
    state.temperature = torch.tensor([0.0, 0.7, 1.0, 1.3], device="cuda")[pattern % 4]
    state.top_k = torch.tensor([0, 5, 0, 40, 20, 200], dtype=torch.int32, device="cuda")[pattern % 6]
    state.top_p = torch.tensor([1.0, 0.9, 0.8, 0.5, 0.95], device="cuda")[pattern % 5]
    state.min_p = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.05], device="cuda")[pattern % 7]
    state.seeds = torch.randint(-(2**62), 2**62, (rows,), device="cuda")
    state.token_index = pattern.long() * 7
    for name, value in fields.items():
        setattr(state, name, value)
    return state


@pytest.mark.parametrize("vocab", [49_152, 151_936])
@pytest.mark.parametrize("scale", [0.3, 3.0])
def test_sample(vocab: int, scale: float) -> None:
    """The very ids of the reference; one row in a hundred may sit on a rounding edge."""
    rows = 60
    logits = torch.randn(rows, vocab, device="cuda") * scale
    counts = torch.randint(0, 3, (rows, vocab), dtype=torch.int32, device="cuda")
    penalties = {"frequency_penalty": torch.rand(rows, device="cuda"), "output_counts": counts}
    for fields in ({}, {"filtered": False, "logprobs": 0}, {"greedy": True}, {**penalties, "logprobs": 2}):
        state = sampling_state(rows, **fields)
        got, wanted = sampling.sample(logits, state), sampling_reference.sample(logits, state)
        same = (got.tokens == wanted.tokens).float().mean().item()
        assert same >= 0.98, (fields.keys(), same)
        if got.logprobs is not None:
            kept = got.tokens == wanted.tokens
            near(got.logprobs[kept], wanted.logprobs[kept], 1e-4)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 40])
def test_chain_in_a_graph(fused: bool, rows: int) -> None:
    """Dependent launches in a CUDA graph give the bits of the same launches one by one."""
    hidden, inter, num_q, num_kv, dim, depth = 1024, 3072, 16, 8, 128, 6
    batch = ragged_batch([1] * rows, [(70 + 410 * row) % 1000 + 1 for row in range(rows)], 64, rows)
    angles = torch.rand(1024, dim // 2, device="cuda") * 6
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1)
    table = dense(normal(500, hidden))
    blocks = [
        (
            dense(normal((num_q + 2 * num_kv) * dim, hidden, scale=0.03)),
            dense(normal(hidden, num_q * dim, scale=0.02)),
            dense(normal(2 * inter, hidden, scale=0.03)),
            dense(normal(hidden, inter, scale=0.02)),
            normal(2, batch.pages, 64, num_kv, dim),
        )
        for _ in range(depth)
    ]
    gain, head_gain = normal(hidden), normal(dim)
    heads = {"num_q": num_q, "num_kv": num_kv, "head_dim": dim, "q_norm": head_gain, "k_norm": head_gain, "eps": 1e-6}
    tokens = torch.arange(rows, dtype=torch.int32, device="cuda") * 11
    state = greedy_state(rows, "cuda")

    def step(pause: bool) -> list[torch.Tensor]:
        def done(value: torch.Tensor) -> torch.Tensor:
            if pause:
                torch.cuda.synchronize()
            return value

        h = done(embedding.lookup(tokens, table))
        for qkv_w, out_w, gate_w, down_w, cache in blocks:
            qkv = done(linear.linear(h, qkv_w, norm=gain, eps=1e-6))
            if fused:
                a = done(decode.rope_decode(qkv, cache[0], cache[1], batch, cos_sin, dim**-0.5, **heads))
            else:
                q = done(rope.rope_write(qkv, cache[0], cache[1], batch, cos_sin, **heads))
                a = done(attention.paged(q, cache[0], cache[1], batch, dim**-0.5))
            h = done(linear.linear(a, out_w, residual=h))
            g = done(linear.gated(h, gate_w, norm=gain, eps=1e-6))
            h = done(linear.linear(g, down_w, residual=h))
        logits = done(linear.linear(h, table, norm=gain, eps=1e-6))
        return [h, logits, sampling.sample(logits, state).tokens]

    wanted = [value.clone() for value in step(pause=True)]
    step(pause=False)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = step(pause=False)
    for _ in range(20):
        graph.replay()
        torch.cuda.synchronize()
        for mine, theirs in zip(got, wanted, strict=True):
            assert torch.isfinite(mine).all()
            assert torch.equal(mine, theirs)
