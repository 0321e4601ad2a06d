"""Steps with prefill rows on a GPU: one pinned block, then a graph of the step's size, or kernel by kernel.

Attention reads lengths and tables on the device, so that a graph recorded for T tokens and B rows serves every step
of at most as many: tokens past the step's belong to no row and write to no page, rows past its have no token.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from tsd.engine.batch import ForwardBatch, KVCache
from tsd.engine.executor.graphs import record
from tsd.engine.executor.rows import HostBatch
from tsd.engine.executor.staging import pinned
from tsd.engine.models import Decoder

TOKEN_BUCKETS = (
    *(32, 64, 96, 128, 192, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048),
    *(2560, 3072, 3584, 4096, 5120, 6144, 7168, 8192),
)
"""A step of a size in between computes up to a quarter more tokens than it has."""
_RING = 4
"""Deeper than the steps that can be on their way, so that a block's copy is done when its turn comes again."""

_ROW_STEPS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_TOKEN_STEPS = (1, 2, 16, 32, 64, 128, 192, 256, 320, 384, 512)
_MANY = 80
"""Numbers of rows and tokens that stand for all others, as far as kernels tell them apart, where there is no graph."""

_MOST_TILED = 640
"""Logits of a step beyond which its products are the library's."""

_EMPTY = np.zeros(0, np.int32)
_NOTHING = HostBatch(_EMPTY, _EMPTY, _EMPTY, _EMPTY, np.zeros(1, np.int32), _EMPTY, _EMPTY, 0, 0)


class Bucket(NamedTuple):
    tokens: int
    rows: int


class MixedSteps:
    """Static inputs, and graphs by bucket. `last_token` and `page_table` are the executor's slot state.

    `plans` is told of each step before it is queued, where the chosen attention makes plans; see `planned.py`.
    """

    def __init__(
        self,
        model: Decoder,
        cache: KVCache,
        last_token: torch.Tensor,
        page_table: torch.Tensor,
        *,
        max_tokens: int,
        max_rows: int,
        device: torch.device,
        plans: Any = None,
    ) -> None:
        self.model = model
        self.cache = cache
        self.last_token = last_token
        self.page_table = page_table
        self.max_rows = max_rows
        self.device = device
        self._max_tokens = max_tokens
        # A step may want every token's logits, once more for those that are sampled.
        size = 3 * max_tokens + 4 * (max_tokens + max_rows + 1) + 1
        self._block = torch.zeros(size, dtype=torch.int32, device=device)
        self._host = [pinned(size, device) for _ in range(_RING)]
        self._views = [block.numpy() for block in self._host]
        self._turn = 0
        self._graphs: dict[Bucket, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
        self._row_buckets = sorted({size for size in (16, 64) if size < max_rows} | {max_rows})
        self.plans = plans

    @property
    def captured(self) -> int:
        return len(self._graphs)

    def run(self, host: HostBatch, num_decode: int, before_layer: Callable[[int], None] | None = None) -> torch.Tensor:
        """Queues the step; logits [S, V] in the order of `host.sample_index`, valid until the next step.

        A step that waits for layers runs kernel by kernel, at its graph's size, for waits are no part of a graph: the
        host is far ahead by the time that the layers are there. So does one that wants more logits than rows, for
        prompts that are scored.
        """
        count, rows, wanted = len(host.tokens), len(host.slots), len(host.sample_index)
        bucket = self._bucket(count, max(rows, wanted))
        if bucket is not None and before_layer is None:
            self._send(host, bucket)
            self._plan(host, bucket, num_decode)
            graph, logits = self._graphs[bucket]
            graph.replay()
            return logits[:wanted]
        scored = bucket is None
        bucket = bucket or self._bucket(count, rows)
        if bucket is not None:
            self._send(host, _scored(bucket) if scored else bucket)
            self._plan(host, bucket, num_decode)
            return self._captured_body(bucket, before_layer, scored)[:wanted]
        self._send(host, Bucket(count, max(rows, wanted)))
        self._plan(host, Bucket(count, rows), num_decode)
        return self._forward(
            Bucket(count, max(rows, wanted)),
            rows=rows,
            wanted=wanted,
            num_decode=num_decode,
            max_query_len=host.max_query_len,
            max_kv_len=host.max_kv_len,
            before_layer=before_layer,
        )

    def capture(self, pool: Any, stream: torch.cuda.Stream, report: Callable[[float], None]) -> None:
        """Records a graph for each bucket, the largest first; every kernel must have run at each size (`touch`)."""
        buckets = self.graph_sizes()
        for done, bucket in enumerate(buckets):
            self._graphs[bucket] = record(partial(self._captured_body, bucket), stream, pool)
            report((done + 1) / len(buckets))

    def graph_sizes(self) -> list[Bucket]:
        """The sizes that have a graph, the largest first.

        Each has more tokens than rows: with as many, the model would take the sampled rows for all tokens in order.
        """
        return [bucket for bucket in self._buckets() if bucket.rows < bucket.tokens]

    def touch(self, graphs: bool) -> None:
        """Calls the step at each size, for what its kernels need compiled; also as it runs where no graph serves it."""
        for bucket in self._buckets():
            self._touch(partial(self._captured_body, bucket), bucket)
            if bucket.tokens + bucket.rows <= _MOST_TILED:
                self._touch(partial(self._captured_body, bucket, scored=True), bucket, _scored(bucket))
        if graphs and self._max_tokens in TOKEN_BUCKETS:
            return
        rows = {size for size in _ROW_STEPS if size <= self.max_rows} | {self.max_rows}
        tokens = {*_TOKEN_STEPS, self._max_tokens}
        few = {Bucket(size, rows) for size in tokens for rows in (1, 2) if rows <= min(size, self.max_rows)}
        for bucket in {*(Bucket(max(_MANY, size), size) for size in rows), *few}:
            for num_decode in {0, bucket.rows - 1}:
                body = partial(
                    self._forward,
                    bucket,
                    rows=bucket.rows,
                    wanted=bucket.rows,
                    num_decode=num_decode,
                    max_query_len=bucket.tokens,
                    max_kv_len=bucket.tokens,
                )
                self._touch(body, bucket)
        for wanted in _ROW_STEPS:
            if self.max_rows < wanted < self._max_tokens:
                bucket = Bucket(self._max_tokens, wanted)
                body = partial(
                    self._forward,
                    bucket,
                    rows=1,
                    wanted=wanted,
                    num_decode=0,
                    max_query_len=bucket.tokens,
                    max_kv_len=bucket.tokens,
                )
                self._touch(body, Bucket(self._max_tokens, 1), bucket)

    def _touch(self, body: Callable[[], torch.Tensor], bucket: Bucket, block: Bucket | None = None) -> None:
        """Calls `body` for a step of `bucket`'s size, whose block is as large as `block`."""
        if bucket.tokens > self._max_tokens:
            return
        self._send(_NOTHING, block or bucket)
        self._plan(_NOTHING, bucket, 0)
        body()
        if self.device.type == "cuda":
            torch.cuda.synchronize()  # the ring of blocks is no deeper than steps are in flight

    def _buckets(self) -> list[Bucket]:
        tokens = [size for size in TOKEN_BUCKETS if size <= self._max_tokens]
        sizes = [(size, rows) for size in reversed(tokens) for rows in reversed(self._row_buckets)]
        return [Bucket(size, rows) for size, rows in sizes if rows <= max(size, 64)]

    def _captured_body(
        self, bucket: Bucket, before_layer: Callable[[int], None] | None = None, scored: bool = False
    ) -> torch.Tensor:
        longest = self.page_table.shape[1] * self.cache.page_size
        block = _scored(bucket) if scored else bucket
        return self._forward(
            block,
            rows=bucket.rows,
            wanted=block.rows,
            # Both of attention's kernels look at every row and take those of their kind.
            num_decode=bucket.rows,
            max_query_len=bucket.tokens,
            max_kv_len=longest,
            before_layer=before_layer,
        )

    def _bucket(self, tokens: int, rows: int) -> Bucket | None:
        if not self._graphs:
            return None
        row_place = bisect_left(self._row_buckets, rows)
        if row_place == len(self._row_buckets):
            return None
        # Graphs for many rows are recorded only where there are more tokens.
        most_rows = self._row_buckets[row_place]
        token_place = bisect_left(TOKEN_BUCKETS, max(tokens, most_rows + 1))
        if token_place == len(TOKEN_BUCKETS):
            return None
        found = Bucket(TOKEN_BUCKETS[token_place], self._row_buckets[row_place])
        return found if found in self._graphs else None

    def _send(self, host: HostBatch, bucket: Bucket) -> None:
        """Writes the block for a step of `bucket`'s size and queues its one copy."""
        self._turn = (self._turn + 1) % _RING
        view = self._views[self._turn]
        padding_slot = len(self.last_token) - 1
        size, rows = bucket
        _fill(view[:size], host.tokens, 0)
        _fill(view[size : 2 * size], host.positions, 0)
        _fill(view[2 * size : 3 * size], host.kv_slots, -1)
        at = 3 * size
        _fill(view[at : at + rows + 1], host.query_start, len(host.tokens))
        _fill(view[at + rows + 1 : at + 2 * rows + 1], host.kv_lens, 0)
        _fill(view[at + 2 * rows + 1 : at + 3 * rows + 1], host.sample_index, 0)
        _fill(view[at + 3 * rows + 1 : at + 4 * rows + 1], host.slots, padding_slot)
        used = at + 4 * rows + 1
        self._block[:used].copy_(self._host[self._turn][:used], non_blocking=True)

    def _plan(self, host: HostBatch, bucket: Bucket, num_decode: int) -> None:
        """Where attention plans a step on the host: does so for the one that is queued next."""
        if self.plans is not None:
            width = self.page_table.shape[1]
            self.plans.plan(bucket.tokens, bucket.rows, host.query_start, host.kv_lens, num_decode, width)

    def _forward(
        self,
        bucket: Bucket,
        *,
        rows: int,
        wanted: int,
        num_decode: int,
        max_query_len: int,
        max_kv_len: int,
        before_layer: Callable[[int], None] | None = None,
    ) -> torch.Tensor:
        size, most = bucket
        block, at = self._block, 3 * bucket.tokens
        tokens = block[:size]
        from_slot = self.last_token[(-1 - tokens).clamp_min(0)]
        slots = block[at + 3 * most + 1 : at + 3 * most + 1 + rows]
        batch = ForwardBatch(
            tokens=torch.where(tokens < 0, from_slot, tokens),
            positions=block[size : 2 * size],
            kv_slots=block[2 * size : 3 * size],
            query_start=block[at : at + rows + 1],
            kv_lens=block[at + most + 1 : at + most + 1 + rows],
            page_table=self.page_table.index_select(0, slots),
            sample_index=block[at + 2 * most + 1 : at + 2 * most + 1 + wanted],
            num_decode=num_decode,
            num_rows=rows,
            max_query_len=max_query_len,
            max_kv_len=max_kv_len,
            page_size=self.cache.page_size,
            plans=self.plans,
            before_layer=before_layer,
        )
        return self.model.forward(batch, self.cache)


def _scored(bucket: Bucket) -> Bucket:
    """A block with room for the logits of each token and of each row: always more than tokens, so that the model looks
    at which are wanted."""
    return Bucket(bucket.tokens, bucket.tokens + bucket.rows)


def _fill(target: np.ndarray, values: np.ndarray, rest: int) -> None:
    target[: len(values)] = values
    target[len(values) :] = rest
