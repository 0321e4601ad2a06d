"""What each slot's request asks of sampling, and the state of one step made from it.

Parameters lie in arrays by slot; what few requests use (penalties, bias, stop ids below min_tokens) is kept sparse
and becomes tensors only in steps that have such a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from tsd.engine.executor.blocks import all_set
from tsd.engine.protocol import SamplingParams, Submit, TokenLogprobs
from tsd.kernels.sampling.types import Sampled, SamplingState, greedy_state

if TYPE_CHECKING:
    from tsd.engine.grammar import GrammarRow


class Edits(NamedTuple):
    """What changes a slot's logits; `counts` grows with the output."""

    params: SamplingParams
    stop_ids: tuple[int, ...]
    min_tokens: int
    counts: np.ndarray | None
    seen: np.ndarray | None


class SlotSampling:
    """Arrays by slot, float32 or int as in `SamplingState`."""

    def __init__(self, max_num_seqs: int, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.temperature = np.zeros(max_num_seqs, np.float32)
        self.top_k = np.zeros(max_num_seqs, np.int32)
        self.top_p = np.ones(max_num_seqs, np.float32)
        self.min_p = np.zeros(max_num_seqs, np.float32)
        self.seeds = np.zeros(max_num_seqs, np.int64)
        self.logprobs = np.full(max_num_seqs, -1, np.int32)
        self.edits: dict[int, Edits] = {}
        self.grammars: dict[int, GrammarRow] = {}
        self.likeliest = np.zeros(max_num_seqs, np.uint8)
        """Set where a slot draws its likeliest token and asks for nothing else."""

    def admit(self, slot: int, submit: Submit, seed: int, history: np.ndarray, num_prompt: int) -> None:
        params = submit.sampling
        self.temperature[slot] = params.temperature
        self.top_k[slot] = 0 if params.top_k >= self.vocab_size else params.top_k
        self.top_p[slot] = params.top_p
        self.min_p[slot] = params.min_p
        self.seeds[slot] = seed
        self.logprobs[slot] = params.logprobs
        self.edits.pop(slot, None)
        counted = params.frequency_penalty or params.presence_penalty or params.repetition_penalty != 1.0
        if counted or params.logit_bias or (submit.min_tokens and submit.stop_token_ids):
            counts = np.bincount(history[num_prompt:], minlength=self.vocab_size).astype(np.int32) if counted else None
            seen = None
            if params.repetition_penalty != 1.0:
                seen = np.zeros(self.vocab_size, bool)
                seen[history[:num_prompt]] = True
            self.edits[slot] = Edits(params, submit.stop_token_ids, submit.min_tokens, counts, seen)
        self.likeliest[slot] = params.temperature == 0.0 and params.logprobs < 0 and slot not in self.edits

    def constrain(self, slot: int, row: GrammarRow | None) -> None:
        """The slot's place in its grammar, or None. After `admit`."""
        if row is None:
            self.grammars.pop(slot, None)
        else:
            self.grammars[slot] = row
            self.likeliest[slot] = False

    def is_constrained(self, slots: np.ndarray) -> bool:
        return bool(self.grammars) and any(slot in self.grammars for slot in slots.tolist())

    def needs_last_token(self, slots: np.ndarray) -> bool:
        """Whether some row's sampling depends on the very token before: a grammar's place, or counts of the output."""
        if not self.grammars and not self.edits:
            return False
        return any(
            slot in self.grammars or (slot in self.edits and self.edits[slot].counts is not None)
            for slot in slots.tolist()
        )

    def sampled(self, slots: np.ndarray, tokens: np.ndarray) -> None:
        """Tells the sparse state, if there is any, what its rows drew."""
        if self.grammars:
            for slot, token in zip(slots.tolist(), tokens.tolist(), strict=True):
                row = self.grammars.get(slot)
                if row is not None:
                    row.accept(token)
        if self.edits:
            for slot, token in zip(slots.tolist(), tokens.tolist(), strict=True):
                edit = self.edits.get(slot)
                if edit is not None and edit.counts is not None:
                    edit.counts[token] += 1

    def is_plain(self, slots: np.ndarray) -> bool:
        """Whether temperature and filters are all that these rows ask for."""
        if (self.logprobs[slots] >= 0).any() or self.is_constrained(slots):
            return False
        return not self.edits or not any(slot in self.edits for slot in slots.tolist())

    def is_greedy(self, slots: np.ndarray) -> bool:
        """Whether these rows (int32) draw their likeliest token and ask for nothing else."""
        return all_set(self.likeliest, slots)

    def is_filtered(self, slots: np.ndarray) -> bool:
        return bool(self.top_k[slots].any() or (self.top_p[slots] < 1).any() or self.min_p[slots].any())

    def state(self, slots: np.ndarray, token_index: np.ndarray, device: torch.device | str = "cpu") -> SamplingState:
        """The state of rows `slots`, of which row i is about to draw its token number `token_index[i]`."""
        logprobs = int(self.logprobs[slots].max()) if len(slots) else -1
        edited = [(row, self.edits[slot]) for row, slot in enumerate(slots.tolist()) if slot in self.edits]
        greedy = not self.temperature[slots].any()
        constrained = self.is_constrained(slots)
        if greedy and not edited and logprobs < 0 and not constrained:
            return greedy_state(len(slots), device)
        state = SamplingState(
            temperature=torch.from_numpy(self.temperature[slots]),
            top_k=torch.from_numpy(self.top_k[slots]),
            top_p=torch.from_numpy(self.top_p[slots]),
            min_p=torch.from_numpy(self.min_p[slots]),
            seeds=torch.from_numpy(self.seeds[slots]),
            token_index=torch.from_numpy(token_index.astype(np.int64)),
            greedy=greedy,
            filtered=self.is_filtered(slots),
            logprobs=logprobs,
        )
        if edited:
            _add_edits(state, edited, len(slots), self.vocab_size)
        if constrained:
            state.bitmask = self._bitmask(slots)
        return state if str(device) == "cpu" else _moved(state, device)

    def _bitmask(self, slots: np.ndarray) -> torch.Tensor:
        """int32 [S, ceil(V / 32)]: what each row's grammar allows next; all ones where a row has none."""
        mask = torch.full((len(slots), -(-self.vocab_size // 32)), -1, dtype=torch.int32)
        for place, slot in enumerate(slots.tolist()):
            row = self.grammars.get(slot)
            if row is not None:
                row.fill(mask, place)
        return mask


def _moved(state: SamplingState, device: torch.device | str) -> SamplingState:
    """The state with its tensors on `device`, through pinned memory so that the host does not wait."""
    for name, value in vars(state).items():
        if isinstance(value, torch.Tensor):
            setattr(state, name, value.pin_memory().to(device, non_blocking=True))
    return state


def _add_edits(state: SamplingState, edited: list[tuple[int, Edits]], rows: int, vocab: int) -> None:
    frequency, presence = torch.zeros(rows), torch.zeros(rows)
    repetition = torch.ones(rows)
    counts = seen = None
    bias = stops = 0
    for row, edit in edited:
        frequency[row] = edit.params.frequency_penalty
        presence[row] = edit.params.presence_penalty
        repetition[row] = edit.params.repetition_penalty
        if edit.counts is not None:
            counts = torch.zeros((rows, vocab), dtype=torch.int32) if counts is None else counts
            counts[row] = torch.from_numpy(edit.counts)
        if edit.seen is not None:
            seen = torch.zeros((rows, vocab), dtype=torch.bool) if seen is None else seen
            seen[row] = torch.from_numpy(edit.seen)
        bias = max(bias, len(edit.params.logit_bias))
        stops = max(stops, len(edit.stop_ids) if edit.min_tokens else 0)
    if counts is not None:
        state.output_counts = counts
        state.frequency_penalty, state.presence_penalty = frequency, presence
        if seen is not None:
            state.repetition_penalty, state.prompt_seen = repetition, seen
    if bias:
        state.bias_ids = torch.full((rows, bias), -1, dtype=torch.int32)
        state.bias_values = torch.zeros((rows, bias))
        for row, edit in edited:
            for place, (token, value) in enumerate(edit.params.logit_bias.items()):
                state.bias_ids[row, place] = token
                state.bias_values[row, place] = value
    if stops:
        state.stop_ids = torch.full((rows, stops), -1, dtype=torch.int32)
        state.min_tokens = torch.zeros(rows, dtype=torch.int32)
        for row, edit in edited:
            if edit.min_tokens:
                state.min_tokens[row] = edit.min_tokens
                state.stop_ids[row, : len(edit.stop_ids)] = torch.tensor(edit.stop_ids, dtype=torch.int32)


def logprobs_of(sampled: Sampled, wanted: np.ndarray) -> dict[int, TokenLogprobs]:
    """Entries by row for rows whose `wanted` is not -1. Row i gets wanted[i] alternatives."""
    if sampled.logprobs is None or sampled.ranks is None:
        return {}
    values, ranks = sampled.logprobs.tolist(), sampled.ranks.tolist()
    ids = sampled.top_ids.tolist() if sampled.top_ids is not None else None
    tops = sampled.top_logprobs.tolist() if sampled.top_logprobs is not None else None
    found = {}
    for row, count in enumerate(wanted.tolist()):
        if count >= 0:
            top_ids = tuple(ids[row][:count]) if ids and count else ()
            top_values = tuple(tops[row][:count]) if tops and count else ()
            found[row] = TokenLogprobs(values[row], ranks[row] - 1, top_ids, top_values)
    return found


def prompt_logprobs_of(logits: torch.Tensor, targets: np.ndarray, count: int) -> list[TokenLogprobs]:
    """For logits [n, V] and the ids that came next [n]: log-probability, rank and the `count` likeliest ids."""
    logprobs = torch.log_softmax(logits.to(torch.float32), dim=-1)
    wanted = torch.from_numpy(targets.astype(np.int64)).to(logits.device).unsqueeze(1)
    picked = logprobs.gather(1, wanted)
    ranks = (logprobs > picked).sum(dim=1)
    top = torch.topk(logprobs, count, dim=-1) if count else None
    entries = []
    for i in range(len(targets)):
        ids = tuple(top.indices[i].tolist()) if top is not None else ()
        values = tuple(top.values[i].tolist()) if top is not None else ()
        entries.append(TokenLogprobs(float(picked[i, 0]), int(ranks[i]), ids, values))
    return entries
