"""Sampling: the noise against published vectors, each filter against a plain numpy account, each edit by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from tsd.kernels.registry import default_registry
from tsd.kernels.sampling.reference import gumbel, philox
from tsd.kernels.sampling.types import Sampled, SamplingState, greedy_state

SAMPLERS = [spec.name for spec in default_registry().kernels("sampling.sample") if "cpu" in spec.devices]


@pytest.fixture(params=SAMPLERS)
def sample(request: pytest.FixtureRequest):
    return default_registry().select("sampling.sample", override=request.param).fn


def hot_state(rows: int, **changes: object) -> SamplingState:
    base = dataclasses.replace(greedy_state(rows), greedy=False, filtered=True, temperature=torch.ones(rows))
    base.seeds = torch.randint(-(2**62), 2**62, (rows,))
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


def test_philox_known_answers() -> None:
    """The vectors of the Random123 distribution for philox4x32-10."""
    cases = [
        ([0, 0, 0, 0], [0, 0], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ]
    for counter, key, want in cases:
        words = philox(
            (torch.tensor(key[0]), torch.tensor(key[1])), [torch.tensor(word, dtype=torch.int64) for word in counter]
        )
        assert [int(word) for word in words] == want


def test_noise_is_finite_and_gumbel() -> None:
    noise = gumbel(torch.arange(20), torch.arange(20), 49152).flatten()
    assert torch.isfinite(noise).all()
    assert abs(float(noise.mean()) - 0.5772) < 0.01
    assert abs(float(noise.var()) - np.pi**2 / 6) < 0.02


def test_greedy_takes_the_lowest_id_on_ties(sample) -> None:
    logits = torch.randn(3, 1000)
    logits[:, [7, 500]] = 50.0
    assert sample(logits, greedy_state(3)).tokens.tolist() == [7, 7, 7]
    assert sample(logits, hot_state(3, temperature=torch.zeros(3))).tokens.tolist() == [7, 7, 7]
    assert sample(logits, greedy_state(3)).tokens.dtype is torch.int32


def plain_choice(logits: np.ndarray, noise: np.ndarray, t: float, k: int, p: float, m: float) -> int:
    hot = logits.astype(np.float64) / t
    keep = np.ones(len(hot), bool)
    if k:
        keep &= hot >= np.sort(hot)[-min(k, len(hot))]
    chance = np.where(keep, np.exp(hot - hot.max()), 0)
    chance /= chance.sum()
    order = np.argsort(-chance, kind="stable")
    if p < 1:
        count = int(np.searchsorted(np.cumsum(chance[order]), p)) + 1
        keep &= chance >= chance[order[min(count, len(order)) - 1]]
    keep &= np.exp(hot - hot.max()) >= m
    return int(np.argmax(np.where(keep, hot + noise, -np.inf)))


@pytest.mark.parametrize("vocab", [50, 1003, 49152])
def test_draws_follow_the_account(sample, vocab: int) -> None:
    rows = 12
    generator = np.random.default_rng(vocab)
    logits = torch.from_numpy((generator.standard_normal((rows, vocab)) * 3).astype(np.float32))
    temperature = torch.from_numpy(generator.uniform(0.3, 1.5, rows).astype(np.float32))
    top_k = torch.tensor([0, 1, 5, 40, 0, 0, 0, 7, 0, 3, 0, 100000], dtype=torch.int32)
    top_p = torch.tensor([1, 1, 1, 1, 0.9, 0.2, 1, 0.7, 1e-9, 1, 0.95, 0.5])
    min_p = torch.tensor([0, 0, 0, 0, 0, 0, 0.1, 0.05, 0, 1.0, 0.02, 0])
    state = hot_state(
        rows, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, token_index=torch.arange(rows)
    )
    drawn = sample(logits, state).tokens.tolist()
    noise = gumbel(state.seeds, state.token_index, vocab).numpy()
    wanted = [
        plain_choice(
            logits[i].numpy(), noise[i], float(temperature[i]), int(top_k[i]), float(top_p[i]), float(min_p[i])
        )
        for i in range(rows)
    ]
    assert drawn == wanted


def test_rows_do_not_depend_on_their_batch(sample) -> None:
    logits = torch.randn(6, 3000) * 2
    state = hot_state(6, top_p=torch.full((6,), 0.9), token_index=torch.arange(6))
    together = sample(logits, state).tokens
    for row in range(6):
        alone = dataclasses.replace(
            state,
            **{
                name: getattr(state, name)[row : row + 1]
                for name in ("temperature", "top_k", "top_p", "min_p", "seeds", "token_index")
            },
        )
        assert sample(logits[row : row + 1].clone(), alone).tokens.tolist() == [together[row].item()]


def test_draws_have_the_right_frequencies(sample) -> None:
    rows = 4000
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0]).log_softmax(0)
    state = hot_state(rows, token_index=torch.arange(rows), seeds=torch.full((rows,), -77), filtered=False)
    counts = torch.bincount(sample(logits.repeat(rows, 1), state).tokens.long(), minlength=4) / rows
    assert torch.allclose(counts, logits.exp(), atol=0.03)


def test_edits(sample) -> None:
    logits = torch.tensor([[3.0, 2.9, -1.0, 0.0, 0.5]])
    counts = torch.tensor([[2, 0, 1, 0, 0]], dtype=torch.int32)
    base = greedy_state(1)

    def pick(**changes: object) -> int:
        kept = logits.clone()
        result = int(sample(logits, dataclasses.replace(base, **changes)).tokens)  # type: ignore[arg-type]
        assert torch.equal(kept, logits)
        return result

    assert pick() == 0
    assert pick(output_counts=counts, frequency_penalty=torch.tensor([0.1])) == 1
    assert pick(output_counts=counts, presence_penalty=torch.tensor([0.05])) == 0
    assert pick(output_counts=counts, presence_penalty=torch.tensor([0.15])) == 1
    assert pick(output_counts=counts, repetition_penalty=torch.tensor([1.1])) == 1
    seen = torch.tensor([[True, True, False, False, False]])
    assert pick(output_counts=counts * 0, prompt_seen=seen, repetition_penalty=torch.tensor([10.0])) == 4
    ids, values = torch.tensor([[3, -1]], dtype=torch.int32), torch.tensor([[100.0, 7.0]])
    assert pick(bias_ids=ids, bias_values=values) == 3
    assert pick(bitmask=torch.tensor([[0b10110]], dtype=torch.int32)) == 1
    stops = torch.tensor([[0, 1, -1]], dtype=torch.int32)
    assert pick(stop_ids=stops, min_tokens=torch.tensor([1], dtype=torch.int32)) == 4
    assert pick(stop_ids=stops, min_tokens=torch.tensor([0], dtype=torch.int32)) == 0


def test_logprobs_are_those_of_the_raw_logits(sample) -> None:
    logits = torch.randn(4, 300)
    state = hot_state(4, temperature=torch.tensor([0.0, 0.5, 1.0, 2.0]), logprobs=5)
    result: Sampled = sample(logits, state)
    want = logits.log_softmax(-1)
    own = want.gather(1, result.tokens.long()[:, None])
    torch.testing.assert_close(result.logprobs, own[:, 0])
    assert result.ranks is not None and result.ranks.tolist() == ((want > own).sum(1) + 1).tolist()
    assert result.top_ids is not None and torch.equal(result.top_ids.long(), want.topk(5).indices)
    torch.testing.assert_close(result.top_logprobs, want.topk(5).values)
    assert sample(logits, dataclasses.replace(state, logprobs=0)).top_ids is None
