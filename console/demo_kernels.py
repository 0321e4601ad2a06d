"""The kernel selections of the demo fleet. Data only."""

from __future__ import annotations

from typing import Any


def _choice(op: str, shape: str, selected: str, why: str, us: float, *lost: tuple[str, int, str]) -> dict[str, Any]:
    return {
        "op": op,
        "shape": shape,
        "selected": selected,
        "why": why,
        "us": us,
        "candidates": [{"name": name, "priority": priority, "lost": reason} for name, priority, reason in lost],
    }


REFERENCE = ("reference", 0, "priority 0: plain torch, used when nothing else fits")

KERNELS: list[dict[str, Any]] = [
    _choice(
        "attention.decode",
        "rows 64, heads 32/8 × 128, page 16",
        "flashinfer_paged",
        "fastest measured: 41 µs",
        41.2,
        ("triton_paged", 8, "slower by measurement: 58.0 µs"),
        REFERENCE,
    ),
    _choice(
        "attention.prefill",
        "tokens 2048, heads 32/8 × 128",
        "flashinfer_paged",
        "highest priority that fits (8)",
        212.0,
        ("triton_paged", 8, "slower by measurement: 301 µs"),
        ("cutedsl_sm100", 12, "needs compute capability 10.0"),
        REFERENCE,
    ),
    _choice(
        "attention.rope_write",
        "heads 32/8 × 128, QK norm",
        "triton_rope_write",
        "fuses norm, rope and the KV write",
        6.8,
        ("torch_compile_rope", 4, "priority 4 < 8"),
        REFERENCE,
    ),
    _choice(
        "gemm.linear",
        "64 × 6144 × 4096 bfloat16",
        "cublaslt_fused_norm",
        "fuses norm into the read",
        23.5,
        ("triton_gemm", 8, "slower by measurement: 29.9 µs"),
        ("deep_gemm_fp8", 12, "weights are bfloat16, needs fp8"),
        REFERENCE,
    ),
    _choice(
        "gemm.linear",
        "64 × 4096 × 12288 bfloat16, silu_mul",
        "triton_silu_gemm",
        "fuses silu(gate)·up",
        58.1,
        ("cublaslt", 8, "slower by measurement: 66.4 µs with a separate activation"),
        REFERENCE,
    ),
    _choice(
        "gemm.linear",
        "64 × 151936 × 4096 bfloat16",
        "cublaslt",
        "highest priority that fits (8)",
        287.0,
        ("triton_gemm", 8, "slower by measurement: 340 µs"),
        REFERENCE,
    ),
    _choice("norm.rms", "64 × 4096", "triton_rms", "highest priority that fits (8)", 3.1, REFERENCE),
    _choice(
        "embedding.lookup", "vocab 151936 × 4096", "torch_gather", "only candidate above the reference", 2.7, REFERENCE
    ),
    _choice(
        "sampling.sample",
        "rows 64, vocab 151936",
        "triton_gumbel",
        "one pass, no sort: top-k and top-p by pivots",
        31.4,
        ("flashinfer_sampling", 8, "its random stream is not counter-based"),
        REFERENCE,
    ),
]
