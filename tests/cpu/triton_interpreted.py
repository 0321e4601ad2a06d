"""The Triton kernels against the reference operations, on CPU tensors (float32) under TRITON_INTERPRET=1.

Run by `test_triton.py`, which sets the switch.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tsd.kernels.attention import reference as attention_reference
from tsd.kernels.gemm import reference as gemm_reference
from tsd.kernels.norm import reference as norm_reference
from tsd.kernels.sampling import reference as sampling_reference
from tsd.kernels.sampling.types import SamplingState, greedy_state
from tsd.kernels.step.exchange import ANSWER, Feed, make_exchange
from tsd.kernels.triton import attention, decode, embedding, linear, norm, rope, sampling
from tsd.kernels.triton.merge_norm import merge_kernel
from tsd.kernels.triton.workspace import workspace
from tsd.kernels.weight import dense


def close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=2e-4, atol=2e-4)


def paged_batch(
    query_lens: list[int], kv_lens: list[int], page_size: int, num_decode: int, seed: int = 0
) -> SimpleNamespace:
    """A batch whose rows own shuffled pages; also `pages`, the number of pages that its tables name."""
    generator = torch.Generator().manual_seed(seed)
    counts = [-(-length // page_size) for length in kv_lens]
    order = torch.randperm(sum(counts), generator=generator, dtype=torch.int32)
    table = torch.zeros((len(kv_lens), max(counts) + 2), dtype=torch.int32)
    used = 0
    for row, count in enumerate(counts):
        table[row, :count] = order[used : used + count]
        used += count
    positions, slots = [], []
    for row, (query, length) in enumerate(zip(query_lens, kv_lens, strict=True)):
        for position in range(length - query, length):
            positions.append(position)
            slots.append(int(table[row, position // page_size]) * page_size + position % page_size)
    return SimpleNamespace(
        positions=torch.tensor(positions, dtype=torch.int32),
        kv_slots=torch.tensor(slots, dtype=torch.int32),
        query_start=torch.tensor([0, *torch.tensor(query_lens).cumsum(0).tolist()], dtype=torch.int32),
        kv_lens=torch.tensor(kv_lens, dtype=torch.int32),
        page_table=table,
        num_decode=num_decode,
        num_rows=len(kv_lens),
        max_query_len=max(query_lens),
        max_kv_len=max(kv_lens),
        page_size=page_size,
        pages=sum(counts),
    )


@pytest.fixture(autouse=True)
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter runs them one after the other."""
    monkeypatch.setattr(attention, "PROGRAMS", 12)
    monkeypatch.setattr(attention, "BESIDE", 7)


@pytest.mark.parametrize("rows", [1, 3, 17])
@pytest.mark.parametrize("fused", ["plain", "norm", "act", "bias"])
def test_linear_fusions(rows: int, fused: str) -> None:
    torch.manual_seed(rows)
    n, k = 72, 256
    x = torch.randn(rows, 2 * k if fused == "act" else k)
    weight = dense(torch.randn(n, k) / 16)
    options: dict[str, object] = {"residual": torch.randn(rows, n)}
    if fused == "norm":
        options = {"norm": torch.rand(k) + 0.5, "eps": 1e-6}
    elif fused == "act":
        options["act"] = "silu_mul"
    elif fused == "bias":
        options["bias"] = torch.randn(n)
    wanted = gemm_reference.linear(x, weight, **options)
    close(linear.linear(x, weight, **options), wanted)


def test_linear_tilings() -> None:
    """Ragged N, several K tiles, and partial sums along K: each tiling is the same function."""
    torch.manual_seed(0)
    n, k = 40, 768
    w, norm = torch.randn(n, k) / 16, torch.rand(k) + 0.5
    for rows, plan in (
        (1, linear.Gemv(4, 256, 4)),
        (1, linear.Gemv(16, 1024, 4)),
        (5, linear.Skinny(16, 64, 4, 4, 3, 128)),
        (5, linear.Skinny(64, 128, 1, 4, 3, 0)),
        (70, linear.Tile(64, 16, 64, 4, 4, 3)),
        (70, linear.Tile(16, 64, 128, 1, 4, 3)),
    ):
        x = torch.randn(rows, k)
        y = torch.full((rows, n), float("nan"))
        linear.launch(plan, x, w, y, bias=None, norm=norm, eps=1e-6, act=False, residual=None, gated=False)
        close(y, gemm_reference.linear(x, dense(w), norm=norm, eps=1e-6))
    assert not linear.workspace(torch.device("cpu")).counters.any()


@pytest.mark.parametrize("rows", [1, 4])
def test_gated(rows: int) -> None:
    torch.manual_seed(1)
    n, k = 48, 128
    x, w, norm = torch.randn(rows, k), torch.randn(2 * n, k) / 12, torch.rand(k) + 0.5
    both = gemm_reference.linear(x, dense(w), norm=norm, eps=1e-6)
    wanted = torch.nn.functional.silu(both[:, :n]) * both[:, n:]
    close(linear.gated(x, dense(w), norm=norm, eps=1e-6), wanted)
    for plan in (
        linear.Skinny(16, 64, 2, 4, 3, 64),
        linear.Tile(16, 32, 64, 2, 4, 3),
        linear.Tile(16, 16, 64, 1, 4, 3),
    ):
        y = torch.full((rows, n), float("nan"))
        linear.launch(plan, x, w, y, bias=None, norm=norm, eps=1e-6, act=False, residual=None, gated=True)
        close(y, wanted)


@pytest.mark.parametrize("split", [1, 2])
def test_tiles_add(split: int) -> None:
    """Bias and residual, with ragged edges in both directions."""
    torch.manual_seed(split)
    x, w, bias, residual = torch.randn(37, 128), torch.randn(72, 128), torch.randn(72), torch.randn(37, 72)
    y = torch.full((37, 72), float("nan"))
    plan = linear.Tile(16, 32, 32, split, 4, 3)
    linear.launch(plan, x, w, y, bias=bias, norm=None, eps=0.0, act=False, residual=residual, gated=False)
    close(y, gemm_reference.linear(x, dense(w), bias=bias, residual=residual))


@pytest.mark.parametrize("parts, columns", [(1, 32), (3, 64)])
def test_sums_meet_their_norm(parts: int, columns: int) -> None:
    """What a product left in parts, added to the residual and normed: [parts, blocks, padded rows, columns]."""
    torch.manual_seed(3)
    rows, n = 5, 192
    partial, residual, gain = torch.randn(parts, n // columns, 16, columns), torch.randn(rows, n), torch.rand(n) + 0.5
    hidden, normed = torch.full_like(residual, float("nan")), torch.full_like(residual, float("nan"))
    merge_kernel[(rows,)](
        partial, residual, gain, hidden, normed, n, 1e-5, BM=16, BN=columns, SPLIT=parts, COLUMNS=256, PDL=False
    )
    wanted = residual + partial.sum(0)[:, :rows].transpose(0, 1).reshape(rows, n)
    close(hidden, wanted)
    close(normed, norm_reference.rms(wanted, gain, 1e-5))


def test_add_norm_where_nothing_is_tuned() -> None:
    """The stream goes on without its norm, which the next layer then does."""
    x, w, residual = torch.randn(4, 64), torch.randn(48, 64) / 8, torch.randn(4, 48)
    hidden, normed = linear.add_norm(x, dense(w), residual=residual.clone(), norm=torch.ones(48), eps=1e-6)
    close(hidden, gemm_reference.linear(x, dense(w), residual=residual))
    assert normed is None


def test_norm_and_embedding() -> None:
    x, weight = torch.randn(5, 96), torch.randn(96)
    close(norm.rms(x, weight, 1e-5), norm_reference.rms(x, weight, 1e-5))
    close(norm.silu_mul(x), torch.nn.functional.silu(x[:, :48]) * x[:, 48:])
    ids = torch.tensor([3, 0, 4], dtype=torch.int32)
    assert torch.equal(embedding.lookup(ids, dense(x)), x[ids.long()])


@pytest.mark.parametrize("num_q, num_kv, head_dim, rotary", [(4, 2, 64, 64), (3, 1, 48, 32)])
def test_rope_write(num_q: int, num_kv: int, head_dim: int, rotary: int) -> None:
    torch.manual_seed(2)
    batch = paged_batch([1, 20], [7, 25], 16, 1)
    batch.kv_slots[3] = -1
    qkv = torch.randn(21, (num_q + 2 * num_kv) * head_dim)
    angles = torch.rand(64, rotary // 2) * 6
    options = {"num_q": num_q, "num_kv": num_kv, "head_dim": head_dim, "eps": 1e-6}
    norms = {"q_norm": torch.rand(head_dim) + 0.5, "k_norm": torch.rand(head_dim) + 0.5}
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1)
    for extra in ({}, norms):
        caches = [torch.zeros(batch.pages, 16, num_kv, head_dim) for _ in range(4)]
        got = rope.rope_write(qkv, caches[0], caches[1], batch, cos_sin, **options, **extra)
        wanted = attention_reference.rope_write(qkv, caches[2], caches[3], batch, cos_sin, **options, **extra)
        close(got, wanted)
        close(caches[0], caches[2])
        close(caches[1], caches[3])


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("solo_rows", [0, 4])
def test_rope_decode(normed: bool, solo_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways, the one for few rows with chunks of one and of several blocks."""
    monkeypatch.setattr(decode, "SOLO_ROWS", solo_rows)
    monkeypatch.setattr(decode, "MOST_SPLITS", 16)
    torch.manual_seed(5)
    num_q, num_kv, head_dim = 4, 2, 48
    batch = paged_batch([1, 1, 1, 1], [300, 1, 64, 129], 16, 4)
    qkv = torch.randn(4, (num_q + 2 * num_kv) * head_dim)
    angles = torch.rand(512, 16) * 6
    options = {"num_q": num_q, "num_kv": num_kv, "head_dim": head_dim, "eps": 1e-6}
    if normed:
        options |= {"q_norm": torch.rand(head_dim) + 0.5, "k_norm": torch.rand(head_dim) + 0.5}
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1)
    mine = torch.randn(2, batch.pages, 16, num_kv, head_dim)
    theirs = mine.clone()
    got = decode.rope_decode(qkv, mine[0], mine[1], batch, cos_sin, 0.2, **options)
    q = attention_reference.rope_write(qkv, theirs[0], theirs[1], batch, cos_sin, **options)
    close(got, attention_reference.paged(q, theirs[0], theirs[1], batch, 0.2))
    close(mine, theirs)


@pytest.mark.parametrize("few", [0, 32])
def test_shared_prefixes(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two groups of rows on one prefix, a stranger among them, rows too short to share, a padded one, a chunk."""
    monkeypatch.setattr(decode, "MOST_FEW", few)
    monkeypatch.setattr(decode, "LEAST_KEYS", 32)
    monkeypatch.setattr(decode, "PROGRAMS", 24)
    monkeypatch.setattr(decode, "SOLO_ROWS", 0)
    torch.manual_seed(6)
    num_q, num_kv, head_dim, page_size = 2, 1, 48, 16
    queries = [1] * 11 + [5]
    lengths = [90, 70, 40, 120, 71, 100, 67, 70, 80, 75, 1, 60]
    batch = paged_batch(queries, lengths, page_size, 11)
    for row in (0, 1, 3, 4, 6, 7, 8, 9):
        batch.page_table[row, :4] = batch.page_table[0, :4]
    batch.page_table[2, :1] = batch.page_table[0, :1]
    batch.page_table[9, 3] = batch.page_table[5, 3]
    places = batch.positions.long()
    owner = torch.arange(12).repeat_interleave(torch.tensor(queries))
    batch.kv_slots = (batch.page_table[owner, places // page_size] * page_size + places % page_size).int()
    q = torch.randn(sum(queries), num_q, head_dim)
    caches = torch.randn(2, batch.pages, page_size, num_kv, head_dim)
    wanted = attention_reference.paged(q, caches[0], caches[1], batch, 0.2)
    close(attention.paged(q, caches[0], caches[1], batch, 0.2), wanted)
    assert batch.common.rows.tolist() == [64, 64, 0, 64, 64, 0, 64, 64, 48, 48, 0, 0]
    assert batch.common.groups.tolist() == [64, 48]

    batch.query_start, batch.num_rows, batch.max_query_len = batch.query_start[:12], 11, 1
    batch.kv_slots, batch.positions = batch.kv_slots[:11], batch.positions[:11]
    batch.kv_slots[1] = -1
    del batch.common
    qkv = torch.randn(11, (num_q + 2 * num_kv) * head_dim)
    angles = torch.rand(512, 16) * 6
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1)
    options = {"num_q": num_q, "num_kv": num_kv, "head_dim": head_dim, "eps": 1e-6}
    options |= {"q_norm": torch.rand(head_dim) + 0.5, "k_norm": torch.rand(head_dim) + 0.5}
    theirs = caches.clone()
    got = decode.rope_decode(qkv, caches[0], caches[1], batch, cos_sin, 0.2, **options)
    turned = attention_reference.rope_write(qkv, theirs[0], theirs[1], batch, cos_sin, **options)
    close(got, attention_reference.paged(turned, theirs[0], theirs[1], batch, 0.2))
    close(caches, theirs)


CASES = {
    "decode": ([1, 1, 1, 1], [300, 1, 64, 129], 4),
    "prefill": ([70, 5], [70, 200], 0),
    "mixed": ([1, 1, 40, 1], [150, 3, 90, 1], 2),
}


@pytest.mark.parametrize("case", list(CASES))
@pytest.mark.parametrize("num_q, num_kv, head_dim, page_size", [(2, 1, 64, 16), (3, 1, 48, 64), (4, 1, 128, 128)])
def test_paged(case: str, num_q: int, num_kv: int, head_dim: int, page_size: int) -> None:
    query_lens, kv_lens, num_decode = CASES[case]
    torch.manual_seed(3)
    batch = paged_batch(query_lens, kv_lens, page_size, num_decode)
    q = torch.randn(sum(query_lens), num_q, head_dim)
    caches = torch.randn(2, batch.pages, page_size, num_kv, head_dim)
    wanted = attention_reference.paged(q, caches[0], caches[1], batch, head_dim**-0.5)
    close(attention.paged(q, caches[0], caches[1], batch, head_dim**-0.5), wanted)
    close(attention.paged_invariant(q, caches[0], caches[1], batch, head_dim**-0.5), wanted)
    assert not workspace(q.device).counters.any()


@pytest.mark.parametrize("programs, beside, least", [(1, 1, 1), (5, 3, 1), (7, 7, 2), (40, 9, 1), (40, 40, 4)])
def test_chunks(programs: int, beside: int, least: int) -> None:
    """Tiles that several programs share, programs with several tiles, and more programs than there is work for."""
    torch.manual_seed(7)
    num_q, num_kv, head_dim = 6, 2, 48
    batch = paged_batch([1, 13, 1, 30, 9], [150, 500, 3, 30, 70], 16, 5)
    q = torch.randn(54, num_q, head_dim)
    caches = torch.randn(2, batch.pages, 16, num_kv, head_dim)
    wanted = attention_reference.paged(q, caches[0], caches[1], batch, 0.2)
    one = torch.zeros(54, dtype=torch.bool)
    one[[0, 14]] = True
    cut = {"programs": programs, "beside": beside, "least": least}
    for late, singles in ((True, False), (False, True)):
        out = torch.full((54, num_q * head_dim), float("nan"))
        attention.chunks(q, caches[0], caches[1], out, batch, 0.2, late=late, singles=singles, **cut)
        close(out[~one], wanted[~one])
        if singles:
            close(out, wanted)
        else:
            assert out[one].isnan().all()
    assert not workspace(q.device, "chunks").counters.any()


def sampling_state(rows: int, vocab: int, **fields: object) -> SamplingState:
    generator = torch.Generator().manual_seed(rows)
    state = greedy_state(rows)
    state.greedy, state.filtered = False, True
    state.temperature = torch.tensor([0.0, 0.7, 1.0, 1.3] * rows)[:rows]
    state.top_k = torch.tensor([0, 5, 0, 40] * rows, dtype=torch.int32)[:rows]
    state.top_p = torch.tensor([1.0, 0.9, 0.8, 0.5] * rows)[:rows]
    state.min_p = torch.tensor([0.0, 0.0, 0.0, 0.02, 0.3] * rows)[:rows]
    state.seeds = torch.randint(-(2**62), 2**62, (rows,), generator=generator)
    state.token_index = torch.arange(rows, dtype=torch.int64) * 7
    for name, value in fields.items():
        setattr(state, name, value)
    return state


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's arithmetic on infinities
def test_sample_refuses_rows_that_are_not_finite() -> None:
    logits = torch.randn(5, 6000)
    logits[1, 5000] = float("nan")
    logits[2] = float("-inf")
    logits[3, 7] = float("inf")
    logits[4, 1:] = float("-inf")
    for fields in ({"greedy": True}, {"filtered": False}, {}):
        tokens = sampling.sample(logits, sampling_state(5, 6000, **fields)).tokens.tolist()
        assert tokens[0] >= 0
        assert tokens[1:] == [-1, -1, -1, 0]


@pytest.mark.parametrize("vocab, scale", [(500, 0.2), (6000, 3.0)])
def test_sample(vocab: int, scale: float) -> None:
    """Flat and steep rows, with each filter and all together: the very ids of the reference."""
    torch.manual_seed(4)
    rows = 10
    logits = torch.randn(rows, vocab) * scale
    logits[0, 3] = logits[0, 400] = 50.0
    edits = {
        "frequency_penalty": torch.rand(rows),
        "presence_penalty": torch.rand(rows),
        "repetition_penalty": torch.rand(rows) + 0.5,
        "output_counts": torch.randint(0, 3, (rows, vocab), dtype=torch.int32),
        "prompt_seen": torch.rand(rows, vocab) < 0.3,
        "bias_ids": torch.tensor([[7, -1], [5, 9]] * (rows // 2), dtype=torch.int32),
        "bias_values": torch.tensor([[3.0, 0.0], [-2.0, 80.0]] * (rows // 2)),
        "stop_ids": torch.tensor([[9, -1]] * rows, dtype=torch.int32),
        "min_tokens": torch.full((rows,), 20, dtype=torch.int32),
        "bitmask": torch.randint(-(2**31), 2**31 - 1, (rows, -(-vocab // 32)), dtype=torch.int32),
    }
    for fields in ({}, {"filtered": False, "logprobs": 0}, {"greedy": True}, edits, {**edits, "logprobs": 3}):
        state = sampling_state(rows, vocab, **fields)
        feed = torch.zeros(rows + 2, dtype=torch.int32)
        feed_rows = torch.arange(rows, dtype=torch.int32) + 2
        exchange = make_exchange(rows, logits.device)
        got = sampling.sample(logits, state, feed=Feed(feed, feed_rows, exchange))
        wanted = sampling_reference.sample(logits, state)
        assert got.tokens.tolist() == wanted.tokens.tolist(), fields.keys()
        assert torch.equal(feed[2:], got.tokens)
        assert torch.equal(exchange.answers[0, ANSWER : ANSWER + rows], got.tokens)
        for mine, theirs in zip(got[1:], wanted[1:], strict=True):
            assert (mine is None) == (theirs is None)
            if mine is not None:
                torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
