"""Adding what several programs found for one row and head, each from its own keys. Reads past the L1 cache."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def merge_parts(
    parts,
    here,
    active,
    joint,
    splits,
    G: tl.constexpr,
    GP: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    MOST: tl.constexpr,
):
    """Adds the parts of a row and head and writes G outputs at `here`.

    parts float32 [.., GP * (DP + 2)]: values [GP, DP], maxima [GP], weights [GP] each. Added in order: those from 0 to
    active - 1, then `joint` ones from `splits` on; MOST is at least the last one's place + 1.
    """
    SIZE: tl.constexpr = GP * (DP + 2)
    s = tl.arange(0, MOST)
    g = tl.arange(0, GP)
    d = tl.arange(0, DP)
    live = g < G
    used = (s < active) | ((s >= splits) & (s < splits + joint))
    spots = parts + s[:, None] * SIZE + GP * DP + g[None, :]
    tops = tl.load(spots, mask=used[:, None] & live[None, :], other=-float("inf"), cache_modifier=".cg")
    top = tl.where(live, tl.max(tops, 0), 0.0)
    acc = tl.zeros([GP, DP], tl.float32)
    weight = tl.zeros([GP], tl.float32)
    for part in tl.range(0, active + joint, loop_unroll_factor=4):
        there = parts + tl.where(part < active, part, splits + part - active) * SIZE
        share = tl.load(there + GP * DP + g, mask=live, other=-float("inf"), cache_modifier=".cg")
        share = tl.exp2(share - top)
        mass = tl.load(there + GP * (DP + 1) + g, mask=live, other=0.0, cache_modifier=".cg")
        weight += share * mass
        values = there + g[:, None] * DP + d[None, :]
        acc += share[:, None] * tl.load(values, mask=live[:, None], other=0.0, cache_modifier=".cg")
    acc = acc / tl.where(weight > 0.0, weight, 1.0)[:, None]
    tl.store(here + g[:, None] * D + d[None, :], acc.to(here.dtype.element_ty), mask=live[:, None] & (d < D)[None, :])
