"""The C kernels: each instruction set against the reference or a float64 account, and bit for bit against itself."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from tsd.engine.batch import ForwardBatch
from tsd.kernels.attention import reference as attention
from tsd.kernels.cpu import native
from tsd.kernels.cpu.pack import pack, unpack
from tsd.kernels.embedding import reference as embedding
from tsd.kernels.norm import reference as norm
from tsd.kernels.registry import select
from tsd.kernels.weight import Weight, WeightError, dense, quantize

AVAILABLE = native.ISAS[: native.ISAS.index(native.best_isa()) + 1]
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
METHODS = ("q4_1", "q8_0", "int8", "dense")


@pytest.fixture(autouse=True)
def poison() -> Iterator[None]:
    """Every tensor made by torch.empty starts as NaN, so that an element nobody wrote shows."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(params=[1, 2], ids=["1thread", "2threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = native.get_threads()
    assert native.set_threads(request.param) == request.param
    yield request.param
    native.set_threads(before)


@pytest.fixture(params=AVAILABLE)
def isa(request: pytest.FixtureRequest) -> str:
    return request.param


def make_weight(method: str, n: int, k: int, dtype: torch.dtype = torch.float32) -> Weight:
    values = torch.randn(n, k)
    return dense(values.to(dtype)) if method == "dense" else quantize(values, method)


def rounded(x: np.ndarray) -> np.ndarray:
    """x [T, K] as the packed kernels see it: blocks of 32 rounded to 16-bit integers, the largest 32512."""
    blocks = x.reshape(len(x), -1, 32).astype(np.float32)
    top = np.abs(blocks).max(axis=2, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        q = np.where(top > 0, np.rint(blocks * (np.float32(32512) / top)), 0)
    return (q * (top / np.float32(32512)).astype(np.float64)).reshape(x.shape)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("n", "k"), [(16, 32), (50, 96), (1, 64), (576, 1536)])
def test_packing_loses_nothing(method: str, n: int, k: int) -> None:
    weight = make_weight(method, n, k)
    packed = native.prepare(weight)
    assert packed.layout == "x16" and packed.shape == (n, k)
    back = unpack(packed)
    assert all(torch.equal(back.tensors[name], weight.tensors[name]) for name in weight.tensors)
    assert torch.equal(packed.dequantize(), weight.dequantize())
    assert native.prepare(weight) is packed and native.prepare(packed) is packed


def test_packing_refuses_what_it_cannot_hold() -> None:
    with pytest.raises(WeightError, match="33 columns"):
        pack(quantize(torch.randn(4, 33), "int8"))
    with pytest.raises(WeightError, match="not fp8"):
        pack(Weight("fp8", {"w": torch.zeros(1, 32)}, (1, 32)))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("tokens", [1, 2, 7, 16, 33])
@pytest.mark.parametrize(("n", "k"), [(50, 96), (64, 576), (5, 32)])
def test_linear(isa: str, threads: int, method: str, tokens: int, n: int, k: int) -> None:
    weight = make_weight(method, n, k)
    x = torch.randn(tokens, k)
    x[0, :32] = 0
    seen = x.numpy().astype(np.float64) if method == "dense" else rounded(x.numpy())
    want = seen @ weight.dequantize(torch.float64).numpy().T
    got = native.linear(x, weight, isa=isa).numpy()
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * k**0.5 * 4)


def test_every_16_bit_activation_keeps_its_value(isa: str) -> None:
    """Whole numbers up to 32512 in blocks with that peak are rounded to themselves: each is split in bytes and back."""
    identity = Weight("int8", {"qs": torch.eye(32, dtype=torch.int8), "d": torch.ones(32)}, (32, 32))
    values = torch.arange(-32512, 32512 + 1, dtype=torch.float32)
    values = torch.cat((values, values.new_zeros(-len(values) % 31))).view(-1, 31)
    x = torch.cat((values, torch.full((len(values), 1), 32512.0)), dim=1)
    assert torch.equal(native.linear(x, identity, isa=isa), x)
    assert torch.equal(native.linear(-x, identity, isa=isa), -x)


@pytest.mark.parametrize("peak", [1e-45, 1e-38, 1e-31, 1e30])
def test_blocks_of_any_size_stay_finite(isa: str, peak: float) -> None:
    identity = Weight("int8", {"qs": torch.eye(32, dtype=torch.int8), "d": torch.ones(32)}, (32, 32))
    x = torch.linspace(-1, 1, 32).unsqueeze(0) * peak
    torch.testing.assert_close(native.linear(x, identity, isa=isa), x, rtol=0, atol=max(peak * 1e-4, 1e-30))


@pytest.mark.parametrize("method", METHODS)
def test_linear_at_prefill_size(isa: str, threads: int, method: str) -> None:
    weight, x = make_weight(method, 960, 576), torch.randn(512, 576)
    seen = x.numpy().astype(np.float64) if method == "dense" else rounded(x.numpy())
    want = seen @ weight.dequantize(torch.float64).numpy().T
    np.testing.assert_allclose(native.linear(x, weight, isa=isa).numpy(), want, rtol=0, atol=1e-3)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("method", ["q8_0", "dense"])
def test_linear_fusions(isa: str, dtype: torch.dtype, method: str) -> None:
    tokens, n, k = 9, 40, 64
    weight = make_weight(method, n, k, dtype)
    x, gates = torch.randn(tokens, k).to(dtype), torch.randn(tokens, 2 * k).to(dtype)
    scale, bias, residual = torch.rand(k).to(dtype), torch.randn(n).to(dtype), torch.randn(tokens, n).to(dtype)
    matrix = weight.dequantize(torch.float64)

    def want(effective: torch.Tensor) -> torch.Tensor:
        seen = effective.double() if method == "dense" else torch.from_numpy(rounded(effective.float().numpy()))
        return seen @ matrix.T

    def check(got: torch.Tensor, expected: torch.Tensor) -> None:
        assert got.dtype is dtype
        slack = TOLERANCE[dtype] * expected.abs().max() + (1e-4 * k**0.5 if method != "dense" else 0)
        assert (got.double() - expected).abs().max() <= slack

    check(native.linear(x, weight, bias=bias, isa=isa), want(x) + bias.double())
    check(native.linear(x, weight, residual=residual, isa=isa), want(x) + residual.double())
    normed = norm.rms(x, scale, 1e-5)
    check(native.linear(x, weight, norm=scale, eps=1e-5, isa=isa), want(normed))
    gate, up = gates.float().chunk(2, dim=1)
    active = (torch.nn.functional.silu(gate) * up).to(dtype)
    check(native.linear(gates, weight, act="silu_mul", residual=residual, isa=isa), want(active) + residual.double())


def test_linear_reads_strided_input_and_refuses_bad_shapes() -> None:
    weight = make_weight("q8_0", 20, 64)
    wide = torch.randn(4, 128)
    assert torch.equal(native.linear(wide[:, :64], weight), native.linear(wide[:, :64].contiguous(), weight))
    for bad in (
        lambda: native.linear(wide, weight),
        lambda: native.linear(wide[:, :64], weight, bias=torch.zeros(3)),
        lambda: native.linear(wide[:, :64], weight, norm=torch.zeros(3)),
        lambda: native.linear(wide[:, :64], weight, residual=torch.zeros(4, 3)),
        lambda: native.linear(wide[:, :64], weight, residual=torch.zeros(4, 20).bfloat16()),
        lambda: native.linear(wide, weight, act="gelu"),
    ):
        with pytest.raises(ValueError):
            bad()
    with pytest.raises(TypeError, match="float64"):
        native.linear(wide[:, :64].double(), weight)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("fused", [False, True])
def test_a_row_of_linear_does_not_depend_on_its_batch(isa: str, threads: int, method: str, fused: bool) -> None:
    n, k, tokens = 176, 160, 37
    weight = make_weight(method, n, k)
    x = torch.randn(tokens, 2 * k if fused else k)
    options = {"act": "silu_mul"} if fused else {"norm": torch.rand(k), "eps": 1e-6}
    whole = native.linear(x, weight, isa=isa, **options)
    for begin, end in [(0, 1), (5, 7), (3, 19), (36, 37), (20, 37), (1, 36)]:
        assert torch.equal(native.linear(x[begin:end], weight, isa=isa, **options), whole[begin:end])
    for row in range(tokens):
        assert torch.equal(native.linear(x[row : row + 1], weight, isa=isa, **options)[0], whole[row])


@pytest.mark.skipif("avx512" not in AVAILABLE, reason="needs both")
@pytest.mark.parametrize("method", METHODS)
def test_avx2_and_avx512_agree_bit_for_bit(method: str) -> None:
    weight, x, scale = make_weight(method, 77, 96), torch.randn(19, 96), torch.rand(96)
    results = [native.linear(x, weight, norm=scale, eps=1e-5, isa=isa) for isa in ("avx2", "avx512")]
    assert torch.equal(*results)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("k", [1, 16, 40, 576])
def test_rms(isa: str, dtype: torch.dtype, k: int) -> None:
    x, scale = torch.randn(35, k).to(dtype), torch.randn(k).to(dtype)
    got, want = native.rms(x, scale, 1e-5, isa=isa), norm.rms(x, scale, 1e-5)
    torch.testing.assert_close(got.float(), want.float(), rtol=TOLERANCE[dtype], atol=1e-6)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("method", METHODS)
def test_lookup(isa: str, method: str, dtype: torch.dtype) -> None:
    table = make_weight(method, 37, 64 if method != "dense" else 40, dtype)
    for ids in (torch.tensor([36, 0, 17, 17, 5], dtype=torch.int32), torch.tensor([1])):
        got = native.lookup(ids, table, dtype=dtype, isa=isa)
        torch.testing.assert_close(got, embedding.lookup(ids, table, dtype=dtype), rtol=1e-6, atol=1e-6)
    for bad in (-1, 37):
        with pytest.raises(IndexError):
            native.lookup(torch.tensor([0, bad]), table)


def make_batch(lens: list[int], queries: list[int], page_size: int, pages: int) -> ForwardBatch:
    """Rows of `lens` cached tokens, the last `queries` of which are computed now, on shuffled pages."""
    width = max(-(-n // page_size) for n in lens) + 1
    order = torch.randperm(pages)
    table = torch.zeros(len(lens), width, dtype=torch.int32)
    used = 0
    positions: list[int] = []
    slots: list[int] = []
    for row, (length, count) in enumerate(zip(lens, queries, strict=True)):
        need = -(-length // page_size)
        table[row, :need] = order[used : used + need]
        used += need
        for position in range(length - count, length):
            positions.append(position)
            slots.append(int(table[row, position // page_size]) * page_size + position % page_size)
    starts = np.concatenate(([0], np.cumsum(queries)))
    return ForwardBatch(
        tokens=torch.zeros(int(starts[-1]), dtype=torch.int32),
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


HEADS = [(9, 3, 64), (4, 4, 16), (8, 1, 128), (6, 2, 40), (2, 1, 8)]


@pytest.mark.parametrize(("num_q", "num_kv", "head_dim"), HEADS)
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("normed", [False, True])
def test_rope_write(isa: str, num_q: int, num_kv: int, head_dim: int, dtype: torch.dtype, normed: bool) -> None:
    batch = make_batch([5, 40], [1, 21], 16, 6)
    batch.kv_slots[3] = -1
    qkv = torch.randn(22, (num_q + 2 * num_kv) * head_dim).to(dtype)
    rotary = head_dim if head_dim != 64 else 48
    cos_sin = torch.randn(64, rotary)
    extra = {"q_norm": torch.rand(head_dim).to(dtype), "k_norm": torch.rand(head_dim).to(dtype), "eps": 1e-6}
    sizes = {"num_q": num_q, "num_kv": num_kv, "head_dim": head_dim, **(extra if normed else {})}
    caches = [torch.full((6, 16, num_kv, head_dim), 7.0, dtype=torch.bfloat16) for _ in range(4)]
    want = attention.rope_write(qkv, caches[0], caches[1], batch, cos_sin, **sizes)
    got = native.rope_write(qkv, caches[2], caches[3], batch, cos_sin, isa=isa, **sizes)
    close = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    torch.testing.assert_close(got, want, **close)
    torch.testing.assert_close(caches[2].float(), caches[0].float(), rtol=2e-2, atol=2e-2)
    assert torch.equal(caches[3], caches[1])


@pytest.mark.parametrize("page_size", [16, 64])
@pytest.mark.parametrize(("num_q", "num_kv", "head_dim"), HEADS)
@pytest.mark.parametrize("kv_dtype", list(TOLERANCE))
def test_paged(
    isa: str, threads: int, page_size: int, num_q: int, num_kv: int, head_dim: int, kv_dtype: torch.dtype
) -> None:
    lens, queries = [1, 65, 200, 33, 32], [1, 1, 119, 33, 7]
    batch = make_batch(lens, queries, page_size, 30)
    caches = [torch.full((30, page_size, num_kv, head_dim), torch.nan, dtype=kv_dtype) for _ in range(2)]
    for row, length in enumerate(lens):  # what no token may see stays NaN
        for position in range(length):
            page = int(batch.page_table[row, position // page_size])
            for cache in caches:
                cache[page, position % page_size] = torch.randn(num_kv, head_dim).to(kv_dtype)
    q = torch.randn(161, num_q, head_dim)
    want = attention.paged(q, *caches, batch, head_dim**-0.5)
    got = native.paged(q, *caches, batch, head_dim**-0.5, isa=isa)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    low = native.paged(q.bfloat16(), *caches, batch, head_dim**-0.5, isa=isa)
    assert low.dtype is torch.bfloat16
    torch.testing.assert_close(low.float(), want, rtol=0.05, atol=0.05)


def test_paged_survives_large_scores(isa: str) -> None:
    batch = make_batch([90], [90], 16, 8)
    k, v = torch.randn(8, 16, 1, 16) * 20, torch.randn(8, 16, 1, 16)
    q = torch.randn(90, 2, 16) * 20  # scores in the hundreds: exp overflows unless the largest is taken off
    got, want = native.paged(q, k, v, batch, 0.25, isa=isa), attention.paged(q, k, v, batch, 0.25)
    torch.testing.assert_close(got, want, rtol=5e-3, atol=5e-3)


def run_sequence(
    isa: str, qkv: torch.Tensor, chunks: list[int], page_size: int, heads: tuple[int, int, int], mate: int
) -> torch.Tensor:
    """Attention outputs of one sequence fed in `chunks`, each step beside a decode row of `mate` cached tokens."""
    num_q, num_kv, head_dim = heads
    cos_sin = torch.linspace(-1, 1, 512 * head_dim).view(512, head_dim)
    shape = (40, page_size, num_kv, head_dim)
    k, v = torch.full(shape, torch.nan), torch.full(shape, torch.nan)
    pages = torch.randperm(38)
    out = []
    done = 0
    for count in chunks:
        length = done + count
        lens, queries = ([mate, length], [1, count]) if mate else ([length], [count])
        batch = make_batch(lens, queries, page_size, 40)
        row = 1 if mate else 0
        used = -(-length // page_size)
        batch.page_table[row, :used] = pages[:used].to(torch.int32)
        spans = torch.arange(done, length)
        slots = pages[spans // page_size] * page_size + spans % page_size
        mine = slice(1, None) if mate else slice(None)
        batch.kv_slots[mine] = slots.to(torch.int32)
        rows = qkv[done:length]
        if mate:  # its cache: the two last pages
            batch.page_table[0, :2] = torch.tensor([38, 39], dtype=torch.int32)
            batch.kv_slots[0] = 38 * page_size
            k[38:], v[38:] = 1.0, 2.0
            rows = torch.cat((torch.randn(1, qkv.shape[1]), rows))
        q = native.rope_write(rows, k, v, batch, cos_sin, num_q=num_q, num_kv=num_kv, head_dim=head_dim, isa=isa)
        out.append(native.paged(q, k, v, batch, head_dim**-0.5, isa=isa)[mine])
        done = length
    return torch.cat(out)


@pytest.mark.parametrize("heads", [(9, 3, 64), (4, 4, 16), (8, 1, 32)])
def test_attention_depends_on_position_only(isa: str, threads: int, heads: tuple[int, int, int]) -> None:
    """One chunk, many chunks, token by token, other pages, other page sizes, with and without a batch mate."""
    length = 150
    qkv = torch.randn(length, (heads[0] + 2 * heads[1]) * heads[2])
    whole = run_sequence(isa, qkv, [length], 16, heads, 0)
    assert torch.isfinite(whole).all()
    for chunks in ([1] * length, [64, 1, 1, 50, 34], [31, 2, 32, 85], [149, 1]):
        for page_size, mate in ((16, 0), (64, 20), (8, 13)):
            assert torch.equal(run_sequence(isa, qkv, chunks, page_size, heads, mate), whole)


def test_the_registry_chooses_them() -> None:
    for method, name in [("q4_1", "cpu_packed"), ("q8_0", "cpu_packed"), ("dense", "cpu_dense")]:
        for objective in ("latency", "determinism"):
            chosen = select("gemm.linear", weight_method=method, traits={"k": 64, "n": 3}, objective=objective)
            assert chosen.spec.name == name
            weight = make_weight(method, 3, 64)
            x = torch.randn(2, 64)
            assert torch.equal(chosen(x, chosen.prepare(weight)), native.linear(x, weight))
    assert select("gemm.linear", weight_method="q8_0", traits={"k": 65}).spec.name == "reference"
    assert select("attention.paged", traits={"head_dim": 64}).spec.solution == "c"
    assert select("attention.paged", traits={"head_dim": 1024}).spec.name == "reference"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_computes_too(threads: int) -> None:
    import os

    weight, x = make_weight("q8_0", 640, 640), torch.randn(8, 640)
    want = native.linear(x, weight)
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(native.linear(x, weight), want) else 1)
    assert os.waitpid(child, 0)[1] == 0
