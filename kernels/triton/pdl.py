"""Programmatic dependent launch, as every Triton kernel here uses it.

A kernel launched with `launch_pdl=True` may start while the one before it still runs. Each kernel therefore
 1. calls `start_next` first: its successor may come up as soon as every program of this kernel has started;
 2. touches only constants (weights, and metadata and cache entries older than this step) before `wait_previous`;
 3. calls `wait_previous` in every program, early exits included: it returns when the kernel before has ended and its
    writes are visible. Because that kernel did the same, everything before it has ended too.

The first kernel of a step (`embedding.lookup`) waits before it lets its successor go, so whatever a step's
preparation wrote (lengths, page tables) counts as constant for all the others. A kernel may also do both to run beside
its predecessor: see `shared.py` and `paged.py`, where prefill does not wait for decode until its end.
Knows nothing about what the kernels compute.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def start_next(PDL: tl.constexpr):
    if PDL:
        gdc_launch_dependents()


@triton.jit
def wait_previous(PDL: tl.constexpr):
    if PDL:
        gdc_wait()


@triton.jit
def prefetch_l2(pointers, PDL: tl.constexpr):
    """Asks for the cache line behind each pointer; returns at once. Lines are 128 bytes."""
    if PDL:
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
            "=r,l",
            [pointers.to(tl.int64, bitcast=True)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
