"""Runs a model over a paged cache without a scheduler: builds each ForwardBatch, with pages in a scrambled order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from tsd.engine.batch import ForwardBatch, KVCache


class PagedModel(Protocol):
    """The part of a model that this helper needs."""

    device: torch.device

    def forward(self, batch: ForwardBatch, cache: KVCache) -> torch.Tensor: ...

    def allocate_cache(self, num_pages: int, page_size: int) -> KVCache: ...


@dataclass
class Row:
    """One request: its tokens so far, how many of them are in the cache, and its pages."""

    tokens: list[int]
    cached: int = 0
    pages: list[int] = field(default_factory=list)


class PagedRunner:
    """Owns a cache and the sequences in it. Page 0 is never given out, so that a stray write shows up."""

    def __init__(self, model: PagedModel, *, page_size: int = 4, num_pages: int = 256, seed: int = 0) -> None:
        self.model = model
        self.page_size = page_size
        self.cache = model.allocate_cache(num_pages, page_size)
        for tensor in (*self.cache.k, *self.cache.v):
            tensor.fill_(float("nan") if tensor.is_floating_point() else 0)
        self._free = list(range(1, num_pages))
        random.Random(seed).shuffle(self._free)

    def add(self, tokens: Sequence[int], share: Row | None = None) -> Row:
        """A new sequence; with `share`, it reads that one's full pages of their common prefix."""
        new = Row(list(tokens))
        if share is not None:
            common = 0
            limit = min(share.cached, len(tokens) - 1)
            while common < limit and share.tokens[common] == tokens[common]:
                common += 1
            full = common // self.page_size
            new.pages = share.pages[:full]
            new.cached = full * self.page_size
        return new

    def step(self, rows: Sequence[tuple[Row, int]]) -> torch.Tensor:
        """Runs `count` more tokens of each sequence and returns the logits after each row's last one, [B, V] float32.

        Rows of one token go first, as the scheduler orders them; the result keeps the order of `rows`.
        """
        order = sorted(range(len(rows)), key=lambda i: rows[i][1] != 1)
        tokens, positions, slots, starts, lens, last = [], [], [], [0], [], []
        for i in order:
            sequence, count = rows[i]
            end = sequence.cached + count
            assert end <= len(sequence.tokens)
            while len(sequence.pages) * self.page_size < end:
                sequence.pages.append(self._free.pop())
            for position in range(sequence.cached, end):
                tokens.append(sequence.tokens[position])
                positions.append(position)
                page = sequence.pages[position // self.page_size]
                slots.append(page * self.page_size + position % self.page_size)
            starts.append(len(tokens))
            lens.append(end)
            last.append(len(tokens) - 1)
            sequence.cached = end
        width = max(len(rows[i][0].pages) for i in order)
        table = [rows[i][0].pages + [0] * (width - len(rows[i][0].pages)) for i in order]

        def tensor(values: object) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.int32, device=self.model.device)

        batch = ForwardBatch(
            tokens=tensor(tokens),
            positions=tensor(positions),
            kv_slots=tensor(slots),
            query_start=tensor(starts),
            kv_lens=tensor(lens),
            page_table=tensor(table),
            sample_index=tensor(last),
            num_decode=sum(1 for _, count in rows if count == 1),
            num_rows=len(rows),
            max_query_len=max(count for _, count in rows),
            max_kv_len=max(lens),
            page_size=self.page_size,
        )
        logits = self.model.forward(batch, self.cache).float().cpu()
        back = [0] * len(rows)
        for place, i in enumerate(order):
            back[i] = place
        return logits[back]

    def prefill(self, sequences: Sequence[Row], chunk: int = 0) -> torch.Tensor:
        """Runs all that is not cached, `chunk` tokens at a time (0: at once); logits after each last token [B, V]."""
        result: list[torch.Tensor | None] = [None] * len(sequences)
        while any(s.cached < len(s.tokens) for s in sequences):
            todo = [i for i, s in enumerate(sequences) if s.cached < len(s.tokens)]
            counts = [len(sequences[i].tokens) - sequences[i].cached for i in todo]
            counts = [min(count, chunk) if chunk else count for count in counts]
            logits = self.step([(sequences[i], count) for i, count in zip(todo, counts, strict=True)])
            for row, i in enumerate(todo):
                result[i] = logits[row]
        return torch.stack([row for row in result if row is not None])

    def greedy(self, sequences: Sequence[Row], count: int, chunk: int = 0) -> list[list[int]]:
        """Prefills, then decodes `count` tokens of each by argmax; returns the new tokens."""
        starts = [len(s.tokens) for s in sequences]
        logits = self.prefill(sequences, chunk)
        for step in range(count):
            for sequence, token in zip(sequences, logits.argmax(-1).tolist(), strict=True):
                sequence.tokens.append(token)
            if step + 1 < count:
                logits = self.step([(s, 1) for s in sequences])
        return [s.tokens[start:] for s, start in zip(sequences, starts, strict=True)]
