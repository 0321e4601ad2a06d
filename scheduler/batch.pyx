"""The rows of a step: one token for every running request, then prefill chunks for what is left of the budget."""

cimport numpy as cnp
from libc.stdint cimport int32_t
from libc.string cimport memcpy

import numpy as np

from tsd.scheduler.admission cimport admit
from tsd.scheduler.core cimport Scheduler
from tsd.scheduler.plan cimport Build
from tsd.scheduler.requests cimport E_CHUNK, E_LAST_CHUNK, S_PREFETCHING, S_PREFILLED, Req

from tsd.scheduler.types import Admission

cnp.import_array()


cdef int decode_rows(Scheduler s, Build build) noexcept:
    """Writes one row for every running request that may decode; returns how many."""
    cdef int i, at, count = 0
    cdef Req* r
    for i in range(s.num_running):
        at = s.running[i]
        r = &s.requests.R[at]
        if not ready(s, r):
            continue
        build.p_slots[count] = r.slot
        build.p_starts[count] = r.computed
        build.p_counts[count] = 1
        build.p_samples[count] = 1
        build.reqs[count] = at
        r.computed += 1
        r.flights += 1
        r.samples += 1
        count += 1
    build.num_rows = count
    build.num_sampled = count
    return count


cdef bint ready(Scheduler s, Req* r) noexcept:
    """Whether a decode row may run: its length is not reached and its page is there."""
    return (
        r.num_tokens + r.samples < r.max_total
        and r.computed == r.num_tokens + r.samples - 1
        and r.computed < r.num_pages * s.page_size
    )


cdef int fill(Scheduler s, Build build, int budget, double now) except -1:
    """Prefill chunks for what is left of the token budget: those begun first, then new ones.

    A row whose last layers are still being copied makes its step wait for them on the device, and every step behind it.
    So such rows run only where nobody decodes and nothing else is to be done.
    """
    cdef int i = 0, at
    while budget > 0:
        if i < s.num_filling:
            at = s.filling[i]
            if s.requests.R[at].load >= 0:
                i += 1
                continue
        else:
            if s.num_free_slots == 0:
                break
            at = admit(s, now)
            if at < 0:
                break
            if s.requests.R[at].state == S_PREFETCHING:
                continue
            s.filling[s.num_filling] = at
            s.num_filling += 1
        i += advance_prefill(s, build, at, &budget, now)
    if build.num_rows == 0 and s.num_running == 0:
        i = 0
        while budget > 0 and i < s.num_filling:
            build.wait_for(s.requests.R[s.filling[i]].load)
            i += advance_prefill(s, build, s.filling[i], &budget, now)
    return 0


cdef int advance_prefill(Scheduler s, Build build, int at, int* budget, double now) except -1:
    """Gives the request a chunk of the budget; 0 when its prompt ends with it and it leaves the list, else 1."""
    budget[0] -= chunk_row(s, build, at, budget[0], now)
    if s.requests.R[at].state != S_PREFILLED:
        return 1
    s.num_filling = s.drop(s.filling, s.num_filling, at)
    s.running[s.num_running] = at
    s.num_running += 1
    return 0


cdef int chunk_row(Scheduler s, Build build, int at, int budget, double now) except -1:
    """One prefill row of at most `budget` tokens; returns how many it took."""
    cdef Req* r = &s.requests.R[at]
    cdef int count = min(budget, r.num_tokens - r.computed)
    cdef int row = build.num_rows
    s.journal.note(now, r.id, "chunk", f"{r.computed}+{count}")
    if not r.announced:
        r.announced = 1
        build.admitted.append(admission(s, at))
    build.p_slots[row] = r.slot
    build.p_starts[row] = r.computed
    build.p_counts[row] = count
    build.reqs[row] = at
    memcpy(build.p_prefill + build.num_prefill, r.tokens + r.computed, count * sizeof(int32_t))
    build.num_prefill += count
    build.num_rows += 1
    r.computed += count
    r.flights += 1
    if r.computed == r.num_tokens:
        build.p_samples[row] = 1
        build.num_sampled += 1
        r.samples += 1
        s.requests.fire(r, E_LAST_CHUNK)
    else:
        build.p_samples[row] = 0
        s.requests.fire(r, E_CHUNK)
    return count


cdef object admission(Scheduler s, int at):
    cdef Req* r = &s.requests.R[at]
    cdef object history = s.requests.prompts[at]
    if r.num_tokens > r.num_prompt:
        history = np.empty(r.num_tokens, np.int32)
        memcpy(cnp.PyArray_DATA(history), r.tokens, r.num_tokens * sizeof(int32_t))
    return Admission(r.slot, r.id, r.num_prompt, r.num_tokens, r.computed, history, s.requests.payloads[at])
