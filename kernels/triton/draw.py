"""The kernels behind `sampling.py`, row by row as `kernels/sampling/types.py` defines it; nothing is sorted.

`score_kernel` reads the logits once over all multiprocessors: edits, temperature, noise, and the best id of each block
of the vocabulary. `pick_kernel`, one program a row, takes the best of the blocks. A row with filters is decided there,
noise included: the winner over all ids is also the winner over the kept ids if it is kept, and whether it is kept takes
one sum over the ids above it. If not, everything up to it is out, and the next candidate is the best of the ids above.
All this happens in registers when the hundred-odd groups of ids with the highest tops hold what can be kept.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

from tsd.kernels.triton.pdl import start_next, wait_previous


@triton.jit
def _gumbel(seed, index, ids):
    """-ln(-ln u) of the row's Philox stream at `ids`, float32; see `types.py` for u close to 1."""
    word, _, _, _ = tl.philox(seed, ids, tl.zeros_like(ids) + index, tl.zeros_like(ids), tl.zeros_like(ids))
    h = (word.to(tl.uint32, bitcast=True) >> 8).to(tl.int32)
    u = (h.to(tl.float32) + 0.5) * 5.9604644775390625e-08
    gap = ((16777215 - h).to(tl.float32) + 0.5) * 5.9604644775390625e-08
    near = 1.0 - gap
    step = 1.0 - near
    # log1p(-gap) = log(near) * gap / (1 - near): the rounding of `near` cancels.
    far = h < 8388608
    log_u = tl.log(tl.where(far, u, near))
    log_u = tl.where(far, log_u, tl.where(step == 0.0, -gap, log_u * gap / tl.where(step == 0.0, 1.0, step)))
    return -tl.log(-log_u)


@triton.jit
def _is_filtered(k, p, least, V):
    """Whether a row's top-k, top-p or min-p can drop anything."""
    return ((k > 0) & (k < V)) | (p < 1.0) | (least > 0.0)


# What a row asks of sampling varies from step to step; a variant for each mixture of it could not be compiled ahead.
_ROW = ("temperature", "seeds", "token_index", "top_k", "top_p", "min_p")
_EDITS = ("frequency", "presence", "repetition", "counts", "seen", "bias_ids", "bias_values", "stop_ids", "min_tokens")
FREQUENCY, PRESENCE, REPETITION, COUNTS, SEEN = 1, 2, 4, 8, 16
"""Bits of `edits`."""


@triton.jit(
    do_not_specialize=["edits", "bias_count", "stop_count", "mask_words", "groups"],
    do_not_specialize_on_alignment=[*_ROW, *_EDITS, "bitmask"],
)
def score_kernel(
    logits,
    temperature,
    seeds,
    token_index,
    edits,
    frequency,
    presence,
    repetition,
    counts,
    seen,
    bias_ids,
    bias_values,
    bias_count,
    stop_ids,
    stop_count,
    min_tokens,
    bitmask,
    mask_words,
    top_k,
    top_p,
    min_p,
    hot_out,
    group_tops,
    groups,
    best_scores,
    best_ids,
    raw_tops,
    raw_masses,
    hot_tops,
    hot_masses,
    V,
    BV: tl.constexpr,
    GROUP: tl.constexpr,
    EDITED: tl.constexpr,
    GREEDY: tl.constexpr,
    FILTERED: tl.constexpr,
    MASS: tl.constexpr,
    PDL: tl.constexpr,
):
    """One block of one row's ids. Grid (rows, blocks); per-block outputs are [rows, blocks].

    EDITED: penalties and biases apply, those whose bit of `edits` is set or whose count is not 0.
    FILTERED: rows with filters keep their scores [rows, V], and of each block the highest, its Σ exp(score - highest)
    and the highest of each GROUP; the noise is left to `pick_kernel`, which needs it for few ids.
    """
    start_next(PDL)
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    ids = block * BV + tl.arange(0, BV)
    live = ids < V
    wait_previous(PDL)
    raw = tl.load(logits + row * V + ids, mask=live, other=-float("inf")).to(tl.float32)
    spot = row * tl.num_programs(1) + block
    if MASS:
        top = tl.max(raw, 0)
        tl.store(raw_tops + spot, top)
        tl.store(raw_masses + spot, tl.sum(tl.exp(raw - tl.where(top == -float("inf"), 0.0, top)), 0))
    score = raw
    index = tl.load(token_index + row)
    if EDITED:
        count = tl.zeros([BV], tl.int32)
        if (edits & 8) != 0:
            count = tl.load(counts + row * V + ids, mask=live, other=0)
        if (edits & 4) != 0:
            known = count > 0
            if (edits & 16) != 0:
                known = known | (tl.load(seen + row * V + ids, mask=live, other=0) != 0)
            penalty = tl.load(repetition + row)
            score = tl.where(known, tl.where(score > 0, score / penalty, score * penalty), score)
        if (edits & 1) != 0:
            score -= tl.load(frequency + row) * count.to(tl.float32)
        if (edits & 2) != 0:
            score -= tl.where(count > 0, tl.load(presence + row), 0.0)
        for entry in range(bias_count):
            biased = tl.load(bias_ids + row * bias_count + entry)
            score += tl.where(ids == biased, tl.load(bias_values + row * bias_count + entry), 0.0)
        if mask_words > 0:
            word = tl.load(bitmask + row * mask_words + ids // 32, mask=live, other=0)
            score = tl.where(((word >> (ids % 32)) & 1) != 0, score, -float("inf"))
        if (stop_count > 0) & (index < tl.load(min_tokens + row)):
            for entry in range(stop_count):
                score = tl.where(ids == tl.load(stop_ids + row * stop_count + entry), -float("inf"), score)
    if not GREEDY:
        heat = tl.load(temperature + row)
        if heat > 0.0:
            score = score / heat
            noisy = True
            if FILTERED:
                noisy = not _is_filtered(tl.load(top_k + row), tl.load(top_p + row), tl.load(min_p + row), V)
                if not noisy:
                    tl.store(hot_out + row * V + ids, score, mask=live)
                    tops = tl.max(tl.reshape(tl.where(live, score, -float("inf")), (BV // GROUP, GROUP)), 1)
                    places = block * (BV // GROUP) + tl.arange(0, BV // GROUP)
                    tl.store(group_tops + row * groups + places, tops, mask=places < groups)
                    top = tl.max(tops, 0)
                    tl.store(hot_tops + spot, top)
                    mass = tl.exp(score - tl.where(top == -float("inf"), 0.0, top))
                    tl.store(hot_masses + spot, tl.sum(tl.where(live, mass, 0.0), 0))
            if noisy:
                score += _gumbel(tl.load(seeds + row), index.to(tl.int32), ids)
    score = tl.where(live, score, -float("inf"))
    best, place = tl.max(score, 0, return_indices=True, return_indices_tie_break_left=True)
    # A logit that is no number, or a score beyond all bounds, poisons the row: `pick_kernel` answers -1.
    poison = tl.max(((score != score) | (score == float("inf"))).to(tl.int32), 0)
    tl.store(best_scores + spot, tl.where(poison != 0, float("nan"), best))
    tl.store(best_ids + spot, block * BV + place)


@triton.jit
def _key(x):
    """int32 in the order of the floats."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _kth_key(keys, k, low, high):
    """The largest t in low .. high that at least k of the keys reach; low must be one that they reach."""
    low = low.to(tl.int64)
    high = high.to(tl.int64) + 1
    while high - low > 1:
        middle = (low + high) >> 1
        if tl.sum((keys >= middle.to(tl.int32)).to(tl.int32)) >= k:
            low = middle
        else:
            high = middle
    return low.to(tl.int32)


@triton.jit
def _census(hot, V, low, high, top, BV: tl.constexpr):
    """How many x >= low (a key) and their Σ exp(x - top), then the same of x > high (a float)."""
    lows = tl.zeros([BV], tl.int32)
    low_mass = tl.zeros([BV], tl.float32)
    highs = tl.zeros([BV], tl.int32)
    high_mass = tl.zeros([BV], tl.float32)
    for start in range(0, V, BV):
        ids = start + tl.arange(0, BV)
        x = tl.load(hot + ids, mask=ids < V, other=-float("inf"))
        mass = tl.exp(x - top)
        inside = (_key(x) >= low) & (ids < V)
        above = x > high
        lows += inside.to(tl.int32)
        low_mass += tl.where(inside, mass, 0.0)
        highs += above.to(tl.int32)
        high_mass += tl.where(above, mass, 0.0)
    return tl.sum(lows, 0), tl.sum(low_mass, 0), tl.sum(highs, 0), tl.sum(high_mass, 0)


@triton.jit
def _best_above(hot, seed, index, V, high, BV: tl.constexpr):
    """The id with the highest noisy score among x > high, the lowest on ties."""
    best = tl.full([BV], -float("inf"), tl.float32)
    where = tl.full([BV], 2147483647, tl.int32)
    for start in range(0, V, BV):
        ids = start + tl.arange(0, BV)
        x = tl.load(hot + ids, mask=ids < V, other=-float("inf"))
        score = x + _gumbel(seed, index, ids)
        better = (x > high) & ((score > best) | (where == 2147483647))
        best = tl.where(better, score, best)
        where = tl.where(better, ids, where)
    top = tl.max(best, 0)
    return tl.min(tl.where(best == top, where, 2147483647), 0)


@triton.jit
def _among_groups(
    hot,
    seed,
    index,
    group_tops,
    listed,
    groups,
    V,
    top,
    everything,
    bound,
    k,
    p,
    ranked,
    BG: tl.constexpr,
    KEEP: tl.constexpr,
    GROUP: tl.constexpr,
):
    """The winner if the ids that can be kept lie in the KEEP highest groups, else -1.

    The k-th largest group top is a lower bound of the k-th largest score, so k groups hold the k highest ids. Without
    top-k, all scores down to the KEEP-th group top are seen, which is enough if they hold the nucleus or pass `bound`.
    """
    g = tl.arange(0, BG)
    tops = tl.load(group_tops + g, mask=g < groups, other=-float("inf"))
    keys = tl.where(g < groups, _key(tops), -2147483648)
    wanted = tl.minimum(tl.where(ranked, k, KEEP), groups)
    ceiling = _key(top)
    low = tl.min(tl.where(g < groups, keys, 2147483647), 0)
    reach = _kth_key(keys, wanted, low, ceiling)
    inside = keys >= reach
    count = tl.sum(inside.to(tl.int32), 0)
    found = -1
    if count <= KEEP:
        tl.store(listed + tl.cumsum(inside.to(tl.int32), 0) - 1, g, mask=inside)
        tl.debug_barrier()
        place = tl.arange(0, KEEP)
        group = tl.load(listed + place, mask=place < count, other=0)
        ids = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        live = (place < count)[:, None] & (ids < V)
        x = tl.load(hot + ids, mask=live, other=-float("inf"))
        noisy = x + _gumbel(seed, index, ids)
        key = tl.where(live, _key(x), -2147483648)
        mass = tl.exp(x - top)
        # With every group at hand nothing lies below their reach.
        reach = tl.where((wanted == groups) & (ranked == 0), -2147483647, reach)
        seen = key >= reach
        whole = everything
        if ranked:
            if tl.sum(seen.to(tl.int32)) > k:
                reach = _kth_key(key, k, reach, ceiling)
                seen = key >= reach
            whole = tl.sum(tl.where(seen, mass, 0.0))
        lowest = tl.min(tl.where(seen, x, float("inf")))
        enough = tl.sum(tl.where(seen, mass, 0.0)) >= p * everything
        if ranked | (wanted == groups) | ((p < 1.0) & enough) | (bound >= lowest):
            seen = seen & (x >= bound)
            last = -float("inf")
            above = 1.0
            while (above > 0.0) & ((p < 1.0) | (found < 0)) & ((found < 0) | (above >= p * whole)):
                rivals = seen & (x > last)
                best = tl.max(tl.where(rivals, noisy, -float("inf")))
                found = tl.min(tl.where(rivals & (noisy == best), ids, 2147483647))
                last = tl.max(tl.where(ids == found, x, -float("inf")))
                above = tl.sum(tl.where(key >= reach, tl.where(x > last, mass, 0.0), 0.0))
    return found


@triton.jit
def _by_elimination(hot, seed, index, V, top, everything, bound, k, p, ranked, BV: tl.constexpr):
    """The winner among the kept ids, whatever they are: passes over the row until a candidate is kept."""
    token = _best_above(hot, seed, index, V, -float("inf"), BV)
    x = tl.load(hot + token)
    floor = tl.full([], -2147483648, tl.int32)
    count, whole, above, mass = _census(hot, V, floor, x, top, BV)
    whole = everything
    if ranked & (p < 1.0):
        low = floor.to(tl.int64)
        high = _key(top).to(tl.int64) + 1
        while (high - low > 1) & (count != k):
            middle = (low + high) >> 1
            reached, reached_mass, _, _ = _census(hot, V, middle.to(tl.int32), x, top, BV)
            if reached >= k:
                low = middle
                count = reached
                whole = reached_mass
            else:
                high = middle
    while (above > 0) & ((ranked & (above >= k)) | ((p < 1.0) & (mass >= p * whole)) | (x < bound)):
        token = _best_above(hot, seed, index, V, x, BV)
        x = tl.load(hot + token)
        _, _, above, mass = _census(hot, V, 2147483647, x, top, BV)
    return token


@triton.jit(
    do_not_specialize=["groups", "blocks", "answer_words"],
    do_not_specialize_on_alignment=[*_ROW, "tokens", "logprobs", "ranks", "feed", "feed_rows", "answers", "clock"],
)
def pick_kernel(
    best_scores,
    best_ids,
    hot_in,
    group_tops,
    groups,
    raw_tops,
    raw_masses,
    hot_tops,
    hot_masses,
    listed,
    logits,
    top_k,
    top_p,
    min_p,
    temperature,
    seeds,
    token_index,
    tokens,
    logprobs,
    ranks,
    feed,
    feed_rows,
    answers,
    clock,
    answer_words,
    blocks,
    V,
    BB: tl.constexpr,
    BG: tl.constexpr,
    BV: tl.constexpr,
    KEEP: tl.constexpr,
    GROUP: tl.constexpr,
    FILTERED: tl.constexpr,
    LOGPROBS: tl.constexpr,
    FEED: tl.constexpr,
    ANSWER: tl.constexpr,
    ENDED: tl.constexpr,
    TIMED: tl.constexpr,
    PDL: tl.constexpr,
):
    """One row: the drawn id, its logprob and rank if asked.

    FEED: also feed[feed_rows[row]] = id, and the id in the step's answer to the host (see `step/exchange.py`), with the
    time if TIMED. BB >= blocks, BG >= groups.
    """
    start_next(PDL)
    row = tl.program_id(0).to(tl.int64)
    b = tl.arange(0, BB)
    wait_previous(PDL)
    scores = tl.load(best_scores + row * blocks + b, mask=b < blocks, other=-float("inf"))
    ids = tl.load(best_ids + row * blocks + b, mask=b < blocks, other=2147483647)
    best = tl.max(scores, 0)
    token = tl.min(tl.where(scores == best, ids, 2147483647), 0)
    healthy = (tl.max((scores != scores).to(tl.int32), 0) == 0) & (best > -float("inf"))
    token = tl.where(healthy, tl.minimum(token, V - 1), -1)
    if FILTERED:
        k = tl.load(top_k + row)
        p = tl.load(top_p + row)
        least = tl.load(min_p + row)
        ranked = (k > 0) & (k < V)
        if healthy & (tl.load(temperature + row) > 0.0) & _is_filtered(k, p, least, V):
            hot = hot_in + row * V
            seed = tl.load(seeds + row)
            index = tl.load(token_index + row).to(tl.int32)
            block_tops = tl.load(hot_tops + row * blocks + b, mask=b < blocks, other=-float("inf"))
            masses = tl.load(hot_masses + row * blocks + b, mask=b < blocks, other=0.0)
            top = tl.max(block_tops, 0)
            everything = tl.sum(masses * tl.exp(block_tops - top), 0)
            bound = tl.where(least > 0.0, top + tl.log(tl.where(least > 0.0, least, 1.0)), -float("inf"))
            found = -1
            if (ranked & (k > KEEP)) == 0:
                found = _among_groups(
                    hot, seed, index, group_tops + row * groups, listed + row * KEEP, groups, V, top, everything, bound,
                    k, p, ranked, BG, KEEP, GROUP,
                )  # fmt: skip
            if found >= 0:
                token = found
            else:
                token = _by_elimination(hot, seed, index, V, top, everything, bound, k, p, ranked, BV)
    tl.store(tokens + row, token)
    if FEED:
        answer = answers + tl.load(clock + 1) * answer_words
        tl.store(answer + ANSWER + row, token)
        tl.store(feed + tl.load(feed_rows + row), tl.maximum(token, 0))
        if TIMED:
            tl.store(answer.to(tl.pointer_type(tl.int64)) + ENDED, globaltimer(), mask=row == 0)
    if LOGPROBS:
        tops = tl.load(raw_tops + row * blocks + b, mask=b < blocks, other=-float("inf"))
        masses = tl.load(raw_masses + row * blocks + b, mask=b < blocks, other=0.0)
        top = tl.max(tops, 0)
        total = tl.sum(masses * tl.exp(tops - top), 0)
        own = tl.load(logits + row * V + tl.maximum(token, 0)).to(tl.float32)
        above_own = tl.zeros([BV], tl.int32)
        for start in range(0, V, BV):
            v = start + tl.arange(0, BV)
            x = tl.load(logits + row * V + v, mask=v < V, other=-float("inf")).to(tl.float32)
            above_own += (x > own).to(tl.int32)
        tl.store(logprobs + row, own - top - tl.log(total))
        tl.store(ranks + row, tl.sum(above_own, 0) + 1)
