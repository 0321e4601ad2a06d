"""Launching the sampling kernels (`draw.py`): one over all blocks of the vocabulary, one over the rows."""

from __future__ import annotations

import torch
import triton

from tsd.kernels.sampling.types import Sampled, SamplingState
from tsd.kernels.step.exchange import ANSWER, ENDED, Feed
from tsd.kernels.triton.draw import COUNTS, FREQUENCY, PRESENCE, REPETITION, SEEN, pick_kernel, score_kernel
from tsd.kernels.triton.target import dependent, has_timer
from tsd.kernels.triton.workspace import workspace

BLOCK = 4096
"""Ids of a program of `score_kernel`."""
GROUP = 64
"""Neighbouring ids of which only the highest is looked at to find where the high scores lie."""
_ALIGNED = 32
"""Words."""
KEEP = 128
"""Groups that are looked into; a larger top-k takes passes over the whole row."""


def sample(
    logits: torch.Tensor,
    state: SamplingState,
    *,
    feed: Feed | None = None,
) -> Sampled:
    """As `sampling.reference.sample`; logits of any float type. A row without a finite winner gets the token -1.

    With `feed` the tokens are also told to the next step and to the host, as `step.feed` does it.
    """
    rows, vocab = logits.shape
    device = logits.device
    logits = logits.contiguous()
    tokens = torch.empty(rows, dtype=torch.int32, device=device)
    logprobs = torch.empty(rows, dtype=torch.float32, device=device) if state.logprobs >= 0 else None
    ranks = torch.empty(rows, dtype=torch.int32, device=device) if state.logprobs >= 0 else None
    filtered = state.filtered and not state.greedy
    edited = state.edits_logits
    blocks = triton.cdiv(vocab, BLOCK)
    groups = triton.cdiv(vocab, GROUP)
    sizes = [rows * blocks] * 6 + [rows * size if filtered else 0 for size in (groups, KEEP, vocab)]
    # Each part is aligned, whatever the number of rows: else kernels are compiled for either case.
    sizes = [-(-size // _ALIGNED) * _ALIGNED for size in sizes]
    scratch = workspace(device).floats(sum(sizes))
    parts = scratch[: sum(sizes)].split(sizes)
    best_scores, best_ids, raw_tops, raw_masses, hot_tops, hot_masses, group_tops, listed, hot = parts
    pdl, launch = dependent(device)
    whole, real = tokens, scratch
    bias_ids, stop_ids, bitmask = state.bias_ids, state.stop_ids, state.bitmask
    score_kernel[(rows, blocks)](
        logits,
        state.temperature,
        state.seeds,
        state.token_index,
        _edits(state),
        _or(state.frequency_penalty, real),
        _or(state.presence_penalty, real),
        _or(state.repetition_penalty, real),
        _or(state.output_counts, whole),
        (state.prompt_seen if state.prompt_seen is not None else whole).view(torch.uint8),
        _or(bias_ids, whole),
        _or(state.bias_values, real),
        0 if bias_ids is None or state.bias_values is None else bias_ids.shape[1],
        _or(stop_ids, whole),
        0 if stop_ids is None or state.min_tokens is None else stop_ids.shape[1],
        _or(state.min_tokens, whole),
        _or(bitmask, whole),
        0 if bitmask is None else bitmask.shape[1],
        state.top_k,
        state.top_p,
        state.min_p,
        hot,
        group_tops,
        groups,
        best_scores,
        best_ids.view(torch.int32),
        raw_tops,
        raw_masses,
        hot_tops,
        hot_masses,
        vocab,
        BV=BLOCK,
        GROUP=GROUP,
        EDITED=edited,
        GREEDY=state.greedy,
        FILTERED=filtered,
        MASS=edited or logprobs is not None,
        PDL=pdl,
        num_warps=8,
        **launch,
    )
    pick_kernel[(rows,)](
        best_scores,
        best_ids.view(torch.int32),
        hot,
        group_tops,
        groups,
        raw_tops,
        raw_masses,
        hot_tops,
        hot_masses,
        listed.view(torch.int32),
        logits,
        state.top_k,
        state.top_p,
        state.min_p,
        state.temperature,
        state.seeds,
        state.token_index,
        tokens,
        _or(logprobs, scratch),
        _or(ranks, tokens),
        tokens if feed is None else feed.last_token,
        tokens if feed is None else feed.slots,
        tokens if feed is None else feed.exchange.answers,
        tokens if feed is None else feed.exchange.clock,
        0 if feed is None else feed.exchange.answers.shape[1],
        blocks,
        vocab,
        BB=triton.next_power_of_2(blocks),
        BG=triton.next_power_of_2(groups) if filtered else 1,
        BV=8192,
        KEEP=KEEP,
        GROUP=GROUP,
        FILTERED=filtered,
        LOGPROBS=logprobs is not None,
        FEED=feed is not None,
        ANSWER=ANSWER,
        ENDED=ENDED,
        TIMED=has_timer(device),
        PDL=pdl,
        num_warps=32 if filtered or logprobs is not None else 4,
        **launch,
    )
    if state.logprobs <= 0:
        return Sampled(tokens, logprobs, ranks)
    best = logits.to(torch.float32).log_softmax(dim=-1).topk(min(state.logprobs, vocab), dim=-1)
    return Sampled(tokens, logprobs, ranks, best.indices.to(torch.int32), best.values)


def _edits(state: SamplingState) -> int:
    """The kernel's `edits`: which of these fields there are."""
    bits = {
        FREQUENCY: state.frequency_penalty,
        PRESENCE: state.presence_penalty,
        REPETITION: state.repetition_penalty,
        COUNTS: state.output_counts,
        SEEN: state.prompt_seen,
    }
    return sum(bit for bit, tensor in bits.items() if tensor is not None)


def _or(tensor: torch.Tensor | None, none: torch.Tensor) -> torch.Tensor:
    """An argument for a pointer that a kernel does not follow."""
    return none if tensor is None else tensor
