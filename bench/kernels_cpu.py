"""Microbenchmark of the CPU kernels: time, bytes, rates and share of the memory floor, per operation and per layer.

Run as `python -m tsd.bench.kernels_cpu [--threads N] [--seconds S]`. Synthetic weights of SmolLM2-135M's shapes, one
set a layer, so that they come from memory as in a real step. Times are the CPU time of the calling thread, best of
many: what other processes do to the wall clock stays out. The floor is the bytes an operation must read over the
read bandwidth that this program measures first.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch

from tsd.engine.batch import ForwardBatch
from tsd.kernels.cpu import native
from tsd.kernels.sampling.cpu import sample
from tsd.kernels.sampling.types import greedy_state
from tsd.kernels.weight import Weight, quantize

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER, VOCAB = 30, 576, 9, 3, 64, 1536, 49152
PAGE = 16


class Layer(NamedTuple):
    """One decoder layer's weights and cache."""

    qkv: Weight
    out: Weight
    gate_up: Weight
    down: Weight
    k: torch.Tensor
    v: torch.Tensor


@dataclass
class Model:
    layers: list[Layer]
    head: Weight
    norm: torch.Tensor
    cos_sin: torch.Tensor


def make_model(pages: int) -> Model:
    """Random q4_1 layers, a q8_0 head and float32 caches of `pages` pages."""

    def weight(rows: int, columns: int, method: str = "q4_1") -> Weight:
        return native.prepare(quantize(torch.randn(rows, columns) * 0.05, method))

    width = (HEADS + 2 * KV_HEADS) * HEAD_DIM
    cache = (pages, PAGE, KV_HEADS, HEAD_DIM)
    layers = [
        Layer(
            weight(width, HIDDEN),
            weight(HIDDEN, HEADS * HEAD_DIM),
            weight(2 * INNER, HIDDEN),
            weight(HIDDEN, INNER),
            torch.randn(cache),
            torch.randn(cache),
        )
        for _ in range(LAYERS)
    ]
    return Model(layers, weight(VOCAB, HIDDEN, "q8_0"), torch.ones(HIDDEN), torch.rand(4096, HEAD_DIM))


def make_batch(rows: int, length: int, queries: int) -> ForwardBatch:
    """`rows` sequences of `length` cached tokens, the last `queries` of which are computed."""
    width = -(-length // PAGE)
    table = torch.arange(rows * width, dtype=torch.int32).view(rows, width)
    spans = torch.arange(length - queries, length)
    slots = table.long()[:, spans // PAGE] * PAGE + spans % PAGE
    return ForwardBatch(
        tokens=torch.zeros(rows * queries, dtype=torch.int32),
        positions=spans.repeat(rows).to(torch.int32),
        kv_slots=slots.reshape(-1).to(torch.int32),
        query_start=torch.arange(0, rows * queries + 1, queries, dtype=torch.int32),
        kv_lens=torch.full((rows,), length, dtype=torch.int32),
        page_table=table,
        sample_index=torch.arange(queries - 1, rows * queries, queries, dtype=torch.int32),
        num_decode=rows if queries == 1 else 0,
        num_rows=rows,
        max_query_len=queries,
        max_kv_len=length,
        page_size=PAGE,
    )


def best(call: Callable[[], object], seconds: float) -> float:
    """Least CPU seconds of this thread for one call."""
    call()
    least, end = float("inf"), time.monotonic() + seconds
    while True:
        began = time.thread_time()
        call()
        least = min(least, time.thread_time() - began)
        if time.monotonic() >= end:
            return least


def read_bandwidth(seconds: float) -> float:
    """Bytes a second that one thread reads from memory (a sum over 256 MiB)."""
    block = torch.ones(64 << 20)
    return block.nbytes / best(block.sum, seconds)


def step(model: Model, batch: ForwardBatch) -> torch.Tensor:
    """A whole forward pass without the embedding."""
    hidden = torch.zeros(batch.tokens.shape[0], HIDDEN)
    for layer in model.layers:
        hidden = run_layer(model, layer, batch, hidden)
    return native.linear(hidden[batch.sample_index.long()], model.head, norm=model.norm, eps=1e-5)


def rope(model: Model, layer: Layer, batch: ForwardBatch, qkv: torch.Tensor) -> torch.Tensor:
    return native.rope_write(
        qkv, layer.k, layer.v, batch, model.cos_sin, num_q=HEADS, num_kv=KV_HEADS, head_dim=HEAD_DIM
    )


def over_weights(x: torch.Tensor, weights: list[Weight]) -> None:
    for weight in weights:
        native.linear(x, weight)


def run_layer(model: Model, layer: Layer, batch: ForwardBatch, hidden: torch.Tensor) -> torch.Tensor:
    qkv = native.linear(hidden, layer.qkv, norm=model.norm, eps=1e-5)
    q = rope(model, layer, batch, qkv)
    mixed = native.paged(q, layer.k, layer.v, batch, HEAD_DIM**-0.5)
    hidden = native.linear(mixed, layer.out, residual=hidden)
    gates = native.linear(hidden, layer.gate_up, norm=model.norm, eps=1e-5)
    return native.linear(gates, layer.down, act="silu_mul", residual=hidden)


def report(name: str, seconds: float, read: int, flops: float, bandwidth: float) -> None:
    floor = 100 * read / bandwidth / seconds
    print(
        f"  {name:<28} {seconds * 1e6:10.1f} µs  {read / 1e6:8.2f} MB  {read / seconds / 1e9:6.1f} GB/s  "
        f"{flops / seconds / 1e9:7.1f} GFLOP/s  {floor:4.0f}% of floor"
    )


def run(model: Model, rows: int, length: int, queries: int, bandwidth: float, seconds: float) -> None:
    """Every operation, then the whole step, for one batch shape."""
    batch = make_batch(rows, length, queries)
    tokens = rows * queries
    print(
        f"\n{rows} rows of {length} tokens, {queries} computed each: an operation over all {LAYERS} layers / {LAYERS}"
    )
    for name in ("qkv", "out", "gate_up", "down"):
        weights = [getattr(layer, name) for layer in model.layers]
        n, k = weights[0].shape
        x = torch.randn(tokens, k)
        took = best(partial(over_weights, x, weights), seconds) / LAYERS
        report(f"linear {name} [{n}, {k}]", took, weights[0].nbytes, 2.0 * tokens * n * k, bandwidth)
    qkv, q = torch.randn(tokens, (HEADS + 2 * KV_HEADS) * HEAD_DIM), torch.randn(tokens, HEADS, HEAD_DIM)
    took = best(lambda: [rope(model, c, batch, qkv) for c in model.layers], seconds)
    report("rope_write", took / LAYERS, qkv.nbytes, 0.0, bandwidth)
    took = best(lambda: [native.paged(q, c.k, c.v, batch, 0.125) for c in model.layers], seconds) / LAYERS
    seen = rows * (queries * (2 * length - queries + 1) // 2)
    report("paged", took, 2 * rows * length * KV_HEADS * HEAD_DIM * 4, 4.0 * seen * HEADS * HEAD_DIM, bandwidth)
    x = torch.randn(rows, HIDDEN)
    took = best(lambda: native.linear(x, model.head), seconds)
    report("head [49152, 576]", took, model.head.nbytes, 2.0 * rows * VOCAB * HIDDEN, bandwidth)
    logits, state = torch.randn(rows, VOCAB), greedy_state(rows)
    report("greedy", best(lambda: sample(logits, state), seconds), logits.nbytes, 0.0, bandwidth)
    took = best(lambda: step(model, batch), seconds)
    weights_read = sum(w.nbytes for c in model.layers for w in c[:4]) + model.head.nbytes
    cache_read = LAYERS * 2 * rows * length * KV_HEADS * HEAD_DIM * 4
    report("whole step", took, weights_read + cache_read, 2.0 * 106e6 * tokens, bandwidth)
    print(f"  {tokens / took:.0f} tokens/s")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Times the CPU kernels on SmolLM2-135M's shapes.")
    parser.add_argument("--threads", type=int, default=1, help="threads the kernels may use (default 1)")
    parser.add_argument("--seconds", type=float, default=0.5, help="time spent on each measurement (default 0.5)")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    with torch.inference_mode():
        threads = native.set_threads(options.threads)
        bandwidth = read_bandwidth(options.seconds)
        print(f"{native.best_isa()}, {threads} thread(s), one thread reads {bandwidth / 1e9:.1f} GB/s")
        model = make_model(pages=256)
        for rows, length, queries in ((1, 16, 1), (1, 512, 1), (8, 128, 1), (8, 512, 1), (1, 512, 512)):
            run(model, rows, length, queries, bandwidth, options.seconds)


if __name__ == "__main__":
    main()
