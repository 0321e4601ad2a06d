"""What sampling is told about its rows and what it answers. Plain tensors; knows nothing about requests.

How a token is drawn, the same on every backend:

  1. logprobs, when asked, are those of the raw logits.
  2. repetition penalty r on ids seen in prompt or output: l > 0 ? l / r : l * r; then frequency * count and
     presence * (count > 0) over the output are subtracted; then logit bias is added.
  3. ids barred by the grammar's bitmask, and stop ids of a row that has not reached min_tokens, become -inf.
  4. temperature 0: the highest logit wins, the lowest id on ties. Otherwise l = l / temperature.
  5. top-k keeps l >= the k-th largest (ties stay). top-p, on the softmax over what top-k kept, keeps the ids whose
     probability is at least that of the last one needed to reach p (ties stay). min-p keeps l >= max + ln(min_p).
  6. Gumbel-max over the kept ids. Noise is Philox4x32-10: key (seed low, seed high), counter (id, token index, 0, 0);
     of the first word r: u = ((r >> 8) + 0.5) * 2**-24, g = -ln(-ln u). In float32 u would round to 1 for the largest
     r: with h = r >> 8, for h >= 2**23 take -ln u as -log1p(-((2**24 - 1 - h) + 0.5) * 2**-24), which is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch


@dataclass
class SamplingState:
    """Per-row parameters of S rows, tensors beside the logits. An optional field is None when no row uses it.

    The host-side facts (`greedy`, `filtered`, `logprobs`) let a kernel skip work without reading a tensor back.
    """

    temperature: torch.Tensor
    """[S] float32; 0 is greedy."""
    top_k: torch.Tensor
    """[S] int32; 0 is off."""
    top_p: torch.Tensor
    """[S] float32; 1 is off."""
    min_p: torch.Tensor
    """[S] float32; 0 is off."""
    seeds: torch.Tensor
    """[S] int64: the 64 bits of the row's seed."""
    token_index: torch.Tensor
    """[S] int64: how many tokens the row's request has generated before this one."""
    frequency_penalty: torch.Tensor | None = None
    """[S] float32; 0 is off."""
    presence_penalty: torch.Tensor | None = None
    """[S] float32; 0 is off."""
    repetition_penalty: torch.Tensor | None = None
    """[S] float32; 1 is off."""
    output_counts: torch.Tensor | None = None
    """[S, V] int32: how often the row has generated each id. Needed by each penalty."""
    prompt_seen: torch.Tensor | None = None
    """[S, V] bool: ids in the prompt. Needed by the repetition penalty."""
    bias_ids: torch.Tensor | None = None
    """[S, M] int32, -1 where a row has fewer."""
    bias_values: torch.Tensor | None = None
    """[S, M] float32."""
    stop_ids: torch.Tensor | None = None
    """[S, M] int32, -1 where a row has fewer."""
    min_tokens: torch.Tensor | None = None
    """[S] int32: below this token index, stop_ids are barred."""
    bitmask: torch.Tensor | None = None
    """[S, ceil(V / 32)] int32: bit i % 32 of word i // 32 is set where id i is allowed."""
    greedy: bool = False
    """Every row has temperature 0."""
    filtered: bool = True
    """Some row uses top-k, top-p or min-p."""
    logprobs: int = -1
    """-1: none; 0: of the drawn token only; k: of the k likeliest ids too (the most that any row wants)."""

    @property
    def edits_logits(self) -> bool:
        """Whether steps 2 and 3 have anything to do."""
        optional = (self.output_counts, self.prompt_seen, self.bias_ids, self.stop_ids, self.bitmask)
        return any(field is not None for field in optional)


class Sampled(NamedTuple):
    """The drawn tokens; the rest is None unless logprobs were asked for."""

    tokens: torch.Tensor
    """[S] int32."""
    logprobs: torch.Tensor | None = None
    """[S] float32: of the drawn token."""
    ranks: torch.Tensor | None = None
    """[S] int32: 1 + how many ids are strictly likelier than the drawn one."""
    top_ids: torch.Tensor | None = None
    """[S, k] int32, likeliest first; None for k = 0."""
    top_logprobs: torch.Tensor | None = None
    """[S, k] float32."""


def greedy_state(rows: int, device: torch.device | str = "cpu") -> SamplingState:
    """`rows` greedy rows with every option off."""
    whole = torch.zeros(rows, dtype=torch.int64, device=device)
    zeros = torch.zeros(rows, dtype=torch.float32, device=device)
    return SamplingState(
        temperature=zeros,
        top_k=whole.to(torch.int32),
        top_p=torch.ones(rows, dtype=torch.float32, device=device),
        min_p=zeros,
        seeds=whole,
        token_index=whole,
        greedy=True,
        filtered=False,
    )
