"""Microbenchmarks of the GPU kernels and of whole decode steps made of them, in CUDA graphs with rotating buffers.

    python -m tsd.bench.kernels_gpu [--out FILE.json] [--steps-only]

Prints operation, shape, microseconds, share of the memory floor and the vendor library's time for the same product.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch

from tsd.bench.gpu_sites import MODELS, Dense, LayerBuffers, PagedBuffers, layers_of, mixed_batch, paged_batch, random
from tsd.bench.gpu_timing import copies_for, graph_of, microseconds
from tsd.kernels.sampling.types import SamplingState, greedy_state
from tsd.kernels.triton import attention, decode, embedding, invariant, linear, norm, rope, sampling
from tsd.kernels.weight import Weight, dense

COPY_RATE = 4.30e6
"""Bytes a microsecond: the copy bandwidth measured on an H200."""
Row = dict[str, str | float]


def report(rows: list[Row], op: str, shape: str, us: float, floor: float = 0.0, library: float = 0.0) -> None:
    """Keeps and prints one line; `floor` and `library` in microseconds, 0 where there is none."""
    rows.append({"op": op, "shape": shape, "us": round(us, 2), "floor_us": round(floor, 2), "library_us": library})
    share = f"{100 * floor / us:5.0f}%" if floor else "      "
    other = f"library {library:8.2f}" if library else ""
    print(f"{op:16} {shape:34} {us:9.2f} us {share} {other}", flush=True)


def time_layers(rows: list[Row]) -> None:
    """Each linear layer at 1, 16, 32, 64 and 128 rows, and the batch-invariant one at 1 and 64."""
    for model in MODELS.values():
        for layer in layers_of(model):
            for count in (1, 16, 32, 64):
                buffers = LayerBuffers(layer, count, copies_for(layer.nbytes))
                plan = linear.plan_for(torch.device("cuda", 0), layer.n, layer.k, linear.bucket(count), layer.gated)
                library = microseconds(buffers.library_launches(), replays=5)
                us = microseconds(buffers.launches(plan)) if plan is not None else library
                shape = f"{model.name} {layer.role} {count}x{layer.weight_rows}x{layer.k}"
                report(rows, "gemm", shape, us, layer.nbytes / COPY_RATE, round(library, 2))
                if count in (1, 64) and layer.role in ("qkv", "down"):
                    calls = [partial(invariant.matmul, buffers.x, w, None, buffers.residual) for w in buffers.weights]
                    report(rows, "gemm.invariant", shape, microseconds(calls), layer.nbytes / COPY_RATE)
                del buffers


def time_attention(rows: list[Row]) -> None:
    """Decode and prefill of both models as `attention.paged` runs them, and the batch-invariant kernel."""
    for name, count, length, query in (
        ("qwen3-0.6b", 1, 300, 1),
        ("qwen3-8b", 1, 300, 1),
        ("qwen3-8b", 1, 4096, 1),
        ("qwen3-8b", 1, 16000, 1),
        ("qwen3-0.6b", 32, 1100, 1),
        ("qwen3-8b", 32, 1100, 1),
        ("qwen3-0.6b", 32, 4096, 1),
        ("qwen3-8b", 32, 4096, 1),
        ("qwen3-8b", 256, 600, 1),
        ("qwen3-8b", 4, 4096, 2048),
        ("qwen3-0.6b", 8, 3200, 200),
    ):
        model = MODELS[name]
        nbytes = count * length * model.num_kv * model.head_dim * 4
        buffers = PagedBuffers(model, count, length, 64, query, copies_for(nbytes))
        shape = f"{name} {count}x{length}" + (f" q{query}" if query > 1 else "")
        floor = nbytes / COPY_RATE
        if query > 1:
            flops = 4 * count * query * (length - query / 2) * model.num_q * model.head_dim
            floor = max(floor, flops / 790e6)
        for op, function in (("attention", attention.paged), ("attn.invariant", attention.paged_invariant)):
            calls = [
                partial(function, buffers.q, c[0], c[1], buffers.batch, model.head_dim**-0.5) for c in buffers.caches
            ]
            report(rows, op, shape, microseconds(calls, fill=8), floor)
        if query == 1:
            report(rows, "rope+attention", shape, microseconds(buffers.fused_launches(), fill=8), floor)
        del buffers


def time_shared(rows: list[Row]) -> None:
    """Decode of 32 sessions of 3,400 keys whose first 3,008 are the same memory, and of the same that share nothing."""
    for name in MODELS:
        model = MODELS[name]
        for common in (3008, 0):
            nbytes = (32 * (3400 - common) + common) * model.num_kv * model.head_dim * 4
            buffers = PagedBuffers(model, 32, 3400, 64, 1, 2)
            buffers.batch.page_table[:, : common // 64] = buffers.batch.page_table[0, : common // 64].clone()
            us = microseconds(buffers.fused_launches(), fill=8)
            report(rows, "shared prefix", f"{name} 32x3400 {common} common", us, nbytes / COPY_RATE)
            del buffers


def sampled(count: int, kind: str) -> SamplingState:
    """Rows that are greedy, hot without filters, or filtered by top-p or by top-k and top-p."""
    state = greedy_state(count, "cuda")
    if kind == "greedy":
        return state
    ones = torch.ones(count, device="cuda")
    state = replace(state, greedy=False, filtered=kind != "hot", temperature=ones * 0.7)
    if kind == "top_p":
        state.top_p = ones * 0.95
    elif kind == "top_k_p":
        state.top_p, state.top_k = ones * 0.95, (ones * 20).int()
    return state


def time_small(rows: list[Row]) -> None:
    """Sampling at the vocabulary of Qwen3, rope and norms."""
    for count in (1, 32, 256):
        logits = random(count, 151_936, scale=3.0)
        for kind in ("greedy", "hot", "top_p", "top_k_p"):
            state = sampled(count, kind)
            us = microseconds([partial(sampling.sample, logits, state)], replays=3, fill=8)
            report(rows, "sample", f"{kind} {count}x151936", us, logits.nbytes / COPY_RATE)
    model = MODELS["qwen3-0.6b"]
    for count, query in ((1, 1), (32, 1), (1, 2048)):
        buffers = StepBuffers(replace(model, layers=1), count, 4096, query, vocab=512)
        tokens = count * query
        qkv = random(tokens, (model.num_q + 2 * model.num_kv) * model.head_dim)
        us = microseconds([partial(buffers.rope, qkv, 0)])
        report(rows, "rope_write", f"{tokens} tokens", us, 2 * qkv.nbytes / COPY_RATE)
        x, gain = random(tokens, model.hidden), random(model.hidden)
        us = microseconds([partial(norm.rms, x, gain, 1e-6)])
        report(rows, "norm.rms", f"{tokens}x{model.hidden}", us, 2 * x.nbytes / COPY_RATE)


class StepBuffers:
    """Random weights and cache of a whole dense model, and one forward pass over them."""

    def __init__(
        self,
        model: Dense,
        rows: int,
        length: int,
        query: int = 1,
        vocab: int = 0,
        batch: SimpleNamespace | None = None,
    ) -> None:
        """`batch`, of that many rows and that length, instead of one whose rows are alike."""
        self.model = model
        dim = model.head_dim
        self.batch = batch or paged_batch(rows, length, 64, query)
        self.tokens = torch.randint(0, 500, (len(self.batch.positions),), device="cuda", dtype=torch.int32)
        self.table = dense(random(vocab or model.vocab, model.hidden))
        self.gain, self.head_gain = random(model.hidden), random(dim)
        angles = torch.rand(length + 1, dim // 2, device="cuda") * 6
        self.cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1)
        self.blocks = [self._block() for _ in range(model.layers)]
        shape = (2, self.batch.pages, 64, model.num_kv, dim)
        self.caches = [random(*shape) for _ in range(model.layers)]
        self.state = greedy_state(rows, "cuda")

    def _block(self) -> tuple[Weight, Weight, Weight, Weight]:
        model = self.model
        q, kv = model.num_q * model.head_dim, model.num_kv * model.head_dim
        shapes = (
            (q + 2 * kv, model.hidden),
            (model.hidden, q),
            (2 * model.inter, model.hidden),
            (model.hidden, model.inter),
        )
        qkv, out, gate_up, down = (dense(random(n, k, scale=k**-0.5)) for n, k in shapes)
        return qkv, out, gate_up, down

    def rope(self, qkv: torch.Tensor, layer: int) -> torch.Tensor:
        return rope.rope_write(
            qkv,
            self.caches[layer][0],
            self.caches[layer][1],
            self.batch,
            self.cos_sin,
            num_q=self.model.num_q,
            num_kv=self.model.num_kv,
            head_dim=self.model.head_dim,
            q_norm=self.head_gain,
            k_norm=self.head_gain,
            eps=1e-6,
        )

    def attend(self, qkv: torch.Tensor, layer: int, fused: bool) -> torch.Tensor:
        k, v = self.caches[layer]
        scale = self.model.head_dim**-0.5
        if not fused:
            return attention.paged(self.rope(qkv, layer), k, v, self.batch, scale)
        return decode.rope_decode(
            qkv,
            k,
            v,
            self.batch,
            self.cos_sin,
            scale,
            num_q=self.model.num_q,
            num_kv=self.model.num_kv,
            head_dim=self.model.head_dim,
            q_norm=self.head_gain,
            k_norm=self.head_gain,
            eps=1e-6,
        )

    def step(self, gated: bool = True, fused: bool = False) -> torch.Tensor:
        """One step, embedding to sampled tokens; `gated` and `fused` pick the larger fusions."""
        h, normed = embedding.lookup(self.tokens, self.table), None
        for layer, (qkv_w, out_w, gate_w, down_w) in enumerate(self.blocks):
            a = self.attend(self.take(linear.linear, h, normed, qkv_w), layer, fused)
            if gated:
                h, normed = linear.add_norm(a, out_w, residual=h, norm=self.gain, eps=1e-6)
                g = self.take(linear.gated, h, normed, gate_w)
                h, normed = linear.add_norm(g, down_w, residual=h, norm=self.gain, eps=1e-6)
            else:
                h = linear.linear(a, out_w, residual=h)
                g = linear.linear(h, gate_w, norm=self.gain, eps=1e-6)
                h = linear.linear(g, down_w, act="silu_mul", residual=h)
        if h.shape[0] > self.batch.num_rows:
            h = h[self.batch.query_start[1:].long() - 1]
            normed = None
        return sampling.sample(self.take(linear.linear, h, normed, self.table), self.state).tokens

    def take(
        self, product: Callable[..., torch.Tensor], h: torch.Tensor, normed: torch.Tensor | None, weight: Weight
    ) -> torch.Tensor:
        """A product of the residual stream, whose norm may have been done with the layer before."""
        return product(h, weight, norm=self.gain, eps=1e-6) if normed is None else product(normed, weight)

    def floor(self) -> float:
        """Microseconds to read every weight and key and value once."""
        weights = sum(w.nbytes for block in self.blocks for w in block) + self.table.nbytes
        model, batch = self.model, self.batch
        cache = batch.num_rows * batch.max_kv_len * model.num_kv * model.head_dim * 4 * model.layers
        return (weights + cache) / COPY_RATE


def time_steps(rows: list[Row], profiled: bool) -> None:
    """Whole steps, in one graph each: decode at 1, 32 and 256 rows, and a prompt of 1,024 tokens."""
    for name in MODELS:
        for count, length, query in ((1, 256, 1), (32, 1088, 1), (256, 576, 1), (1, 1024, 1024)):
            buffers = StepBuffers(MODELS[name], count, length, query)
            for gated, fused in ((True, True), (True, False), (False, False)):
                if query == 1 or not fused:
                    us = microseconds([partial(buffers.step, gated, fused)], replays=5, fill=1)
                    shape = f"{name} {count}x{length} q{query}{' gated' if gated else ''}{' fused' if fused else ''}"
                    report(rows, "step", shape, us, buffers.floor())
            if profiled and count <= 32:
                breakdown(buffers)
            del buffers
            torch.cuda.empty_cache()


def time_mixed(rows: list[Row], profiled: bool) -> None:
    """Steps of 31 sessions that decode and one whose turn begins: 200 new tokens on 3,000 that all have in common."""
    for name, model in MODELS.items():
        buffers = StepBuffers(model, 32, 3300, batch=mixed_batch(31, 1, 230, 3300, 3008, 64))
        us = microseconds([buffers.step], replays=5, fill=1)
        report(rows, "step", f"{name} 31x3300 q1 + 1x3300 q230", us)
        if profiled:
            breakdown(buffers)
        del buffers
        torch.cuda.empty_cache()


def breakdown(buffers: StepBuffers) -> None:
    """Prints where one step's time goes by kernel. Dependent launches overlap, so the parts add up to more."""
    step = partial(buffers.step, True, buffers.batch.max_query_len == 1)
    step()
    graph = graph_of([step])
    graph.replay()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        graph.replay()
        torch.cuda.synchronize()
    for event in sorted(profile.key_averages(), key=lambda event: -event.self_device_time_total)[:9]:
        print(f"    {event.key[:60]:60} x{event.count:4} {event.self_device_time_total:9.1f} us")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="kernels_gpu", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, help="where the figures go (JSON)")
    parser.add_argument("--steps-only", action="store_true", help="only whole decode steps")
    parser.add_argument("--profile", action="store_true", help="break a step down by kernel")
    options = parser.parse_args(argv)
    rows: list[Row] = []
    time_steps(rows, options.profile)
    time_mixed(rows, options.profile)
    if not options.steps_only:
        time_small(rows)
        time_attention(rows)
        time_shared(rows)
        time_layers(rows)
    if options.out is not None:
        options.out.write_text(json.dumps({"device": torch.cuda.get_device_name(), "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
