"""Sampling in plain torch, any device. `types.py` says what each step means; here nothing is clever."""

from __future__ import annotations

import torch

from tsd.kernels.sampling.types import Sampled, SamplingState

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)


def philox(key: tuple[torch.Tensor, torch.Tensor], counter: list[torch.Tensor]) -> list[torch.Tensor]:
    """Philox4x32-10 (Salmon et al. 2011) on int64 tensors that hold 32-bit words; four words out."""
    low, high = key
    c0, c1, c2, c3 = counter
    for _ in range(10):
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((second >> 32) & _WORD) ^ c1 ^ low,
            second & _WORD,
            ((first >> 32) & _WORD) ^ c3 ^ high,
            first & _WORD,
        )
        low, high = (low + _KEY_STEPS[0]) & _WORD, (high + _KEY_STEPS[1]) & _WORD
    return [c0, c1, c2, c3]


def gumbel(seeds: torch.Tensor, token_index: torch.Tensor, vocab: int) -> torch.Tensor:
    """Noise [S, vocab] float32 that depends only on (seed, token index, id)."""
    ids = torch.arange(vocab, dtype=torch.int64, device=seeds.device).unsqueeze(0)
    key = ((seeds & _WORD).unsqueeze(1), ((seeds >> 32) & _WORD).unsqueeze(1))
    zero = torch.zeros_like(ids)
    word = philox(key, [ids, (token_index.to(torch.int64) & _WORD).unsqueeze(1), zero, zero])[0]
    u = ((word >> 8).to(torch.float64) + 0.5) * 2.0**-24
    return (-torch.log(-torch.log(u))).to(torch.float32)


def sample(logits: torch.Tensor, state: SamplingState) -> Sampled:
    """Draws one id for each row of logits [S, V]. The logits are not changed."""
    raw = logits.to(torch.float32)
    scores = edit_logits(raw, state) if state.edits_logits else raw
    tokens = first_argmax(scores)
    if not state.greedy:
        hot = scores / torch.where(state.temperature > 0, state.temperature, 1.0).unsqueeze(1)
        if state.filtered:
            hot = filter_logits(hot, state)
        drawn = first_argmax(hot + gumbel(state.seeds, state.token_index, hot.shape[1]))
        tokens = torch.where(state.temperature > 0, drawn, tokens)
    return with_logprobs(raw, tokens, state.logprobs)


def first_argmax(scores: torch.Tensor) -> torch.Tensor:
    """The id of the highest score of each row, the lowest on ties; int64 [S]."""
    if scores.device.type == "cpu":
        return scores.argmax(dim=-1)
    best = scores.amax(dim=-1, keepdim=True)
    ids = torch.arange(scores.shape[1], device=scores.device)
    return torch.where(scores == best, ids, scores.shape[1]).amin(dim=-1).clamp_max(scores.shape[1] - 1)


def edit_logits(logits: torch.Tensor, state: SamplingState) -> torch.Tensor:
    """Penalties, bias, grammar and min_tokens (steps 2 and 3); a new tensor."""
    logits = logits.clone()
    vocab = logits.shape[1]
    if state.repetition_penalty is not None:
        seen = torch.zeros_like(logits, dtype=torch.bool)
        if state.output_counts is not None:
            seen |= state.output_counts > 0
        if state.prompt_seen is not None:
            seen |= state.prompt_seen
        penalty = state.repetition_penalty.unsqueeze(1)
        logits = torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)
    if state.output_counts is not None:
        if state.frequency_penalty is not None:
            logits -= state.frequency_penalty.unsqueeze(1) * state.output_counts
        if state.presence_penalty is not None:
            logits -= state.presence_penalty.unsqueeze(1) * (state.output_counts > 0)
    if state.bias_ids is not None and state.bias_values is not None:
        values = torch.where(state.bias_ids >= 0, state.bias_values, 0.0)
        logits.scatter_add_(1, state.bias_ids.clamp(0, vocab - 1).to(torch.int64), values)
    if state.bitmask is not None:
        ids = torch.arange(vocab, device=logits.device)
        allowed = (state.bitmask[:, ids // 32] >> (ids % 32)) & 1
        logits.masked_fill_(allowed == 0, float("-inf"))
    if state.stop_ids is not None and state.min_tokens is not None:
        early = (state.token_index < state.min_tokens).unsqueeze(1) & (state.stop_ids >= 0) & (state.stop_ids < vocab)
        wall = torch.zeros_like(logits).scatter_reduce_(
            1, state.stop_ids.clamp(0, vocab - 1).to(torch.int64), early.to(logits.dtype), "amax"
        )
        logits.masked_fill_(wall > 0, float("-inf"))
    return logits


def filter_logits(hot: torch.Tensor, state: SamplingState) -> torch.Tensor:
    """top-k, top-p and min-p on logits after temperature (step 5); what is dropped becomes -inf."""
    vocab = hot.shape[1]
    ordered = hot.sort(dim=-1, descending=True).values
    k = torch.where(state.top_k > 0, state.top_k, vocab).clamp_max(vocab).to(torch.int64)
    floor = ordered.gather(1, (k - 1).unsqueeze(1))
    kept = ordered.masked_fill(ordered < floor, float("-inf"))
    chance = kept.softmax(dim=-1)
    before = chance.cumsum(dim=-1) - chance
    inside = (before < state.top_p.unsqueeze(1)) & torch.isfinite(kept)
    last = (inside.sum(dim=-1, keepdim=True) - 1).clamp_min(0)
    nucleus = torch.where(state.top_p.unsqueeze(1) < 1, ordered.gather(1, last), float("-inf"))
    least = ordered[:, :1] + torch.log(state.min_p.unsqueeze(1))
    return hot.masked_fill(hot < torch.maximum(torch.maximum(floor, nucleus), least), float("-inf"))


def with_logprobs(raw: torch.Tensor, tokens: torch.Tensor, count: int) -> Sampled:
    """Attaches logprobs of the raw logits [S, V]; `count` as `SamplingState.logprobs`."""
    ids = tokens.to(torch.int32)
    if count < 0:
        return Sampled(ids)
    chances = raw.log_softmax(dim=-1)
    own = chances.gather(1, tokens.to(torch.int64).unsqueeze(1))
    ranks = (chances > own).sum(dim=-1).to(torch.int32) + 1
    if count == 0:
        return Sampled(ids, own.squeeze(1), ranks)
    best = chances.topk(min(count, chances.shape[1]), dim=-1)
    return Sampled(ids, own.squeeze(1), ranks, best.indices.to(torch.int32), best.values)
