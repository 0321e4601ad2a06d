"""Admission: which waiting request starts next, with its slot and every page of its tokens reserved, or nothing.

Order: retracted requests, oldest first; then the queue, of which small requests may pass a blocked one within bounds.
"""

from libc.stdint cimport int32_t

from tsd.scheduler.core cimport Scheduler
from tsd.scheduler.pages cimport set_page, take_page
from tsd.scheduler.plan cimport Build
from tsd.scheduler.requests cimport (
    E_FETCH,
    E_RESERVE,
    S_BOOTSTRAPPING,
    S_PREFETCHING,
    S_PREFILLED,
    S_PREFILLING,
    S_SUBMITTED,
    Req,
)

from tsd.scheduler.types import SchedulerFault


cdef enum:
    RETRY_STEPS = 8


cdef int admit(Scheduler s, double now) except -2:
    """The next request to start, its slot and every page of its tokens reserved; -1 when none may."""
    cdef int at, passed, tries = 0
    cdef Req* r
    if s.requests.retr_head >= 0:
        at = s.requests.retr_head
        return at if try_reserve(s, at, now) else -1
    at = s.requests.wait_head
    while at >= 0 and tries <= s.window:
        passed = s.requests.R[at].prev
        if s.requests.R[at].state == S_PREFETCHING:
            at = s.requests.R[at].next
            continue
        if try_reserve(s, at, now):
            while passed >= 0:
                s.requests.R[passed].passed += 1
                passed = s.requests.R[passed].prev
            return at
        r = &s.requests.R[at]
        if r.state == S_SUBMITTED:
            if r.blocked < 0:
                r.blocked = now
            # Passed often enough, or blocked for long enough: from now on what comes free is for it.
            if r.passed >= s.window or now - r.blocked >= s.ageing:
                return -1
        at = r.next
        tries += 1
    return -1


cdef bint try_reserve(Scheduler s, int at, double now) except -1:
    """Matches the prefix and reserves slot and pages for all tokens, or leaves everything as it was.

    True: the request is Bootstrapping, or Prefetching while its host pages are copied to the device.
    """
    cdef Req* r = &s.requests.R[at]
    cdef int total = (r.num_tokens + s.page_size - 1) // s.page_size
    cdef int limit = (r.num_tokens - 1) // s.page_size
    cdef int available = s.pool.num_free + s.index.evictable
    cdef int headroom = 0, lendable = 0, run = 0, device_run = 0, need, k
    cdef size_t base
    if s.num_running or s.num_filling or s.fetching or s.leaving:
        # Room for the rows that run to grow, twice over for one that was already pushed out once.
        headroom = s.room_to_grow * (s.num_running + s.num_filling)
        headroom += headroom if r.retractions else 0
    else:
        lendable = s.withheld.num_device
    available += lendable
    if r.need >= 0 and available < r.need + headroom and s.step - r.tried < RETRY_STEPS:
        return False
    if s.caching:
        s.requests.extend_keys(r, limit)
        run = s.index.match(r.keys, r.tokens, limit, s.scratch, &device_run)
        for k in range(device_run, run):
            if s.index.nodes[s.scratch[k]].loading:
                return False
        if s.sharing and run < limit and not r.is_retracted and soon_shared(s, at, run, limit):
            return False
        if s.tiers.disk.capacity and run < limit and not r.fetched and r.state == S_SUBMITTED:
            r.fetched = 1
            need = s.tiers.prefetch(at, r.keys, r.tokens, s.scratch, run, limit)
            if need:
                s.requests.fire(r, E_FETCH)
                r.moves += 1
                s.journal.note(now, r.id, "prefetch", f"{need} pages from disk")
                return False
        for k in range(run):
            s.index.ref(s.scratch[k])
        for k in range(device_run, run):
            s.index.pin(s.scratch[k])
    need = total - device_run
    available = s.pool.num_free + s.index.evictable
    if available < need and lendable:
        available += s.withheld.lend(need - available)
    if available < need + headroom:
        for k in range(run - 1, device_run - 1, -1):
            s.index.unpin(s.scratch[k])
        for k in range(run - 1, -1, -1):
            s.index.unref(s.scratch[k])
        r.need = need
        r.tried = s.step
        return False
    s.requests.dequeue(at)
    reserve(s, at, run, device_run, total, now)
    if run > device_run:
        s.requests.fire(r, E_FETCH)
        base = <size_t>r.slot * s.max_pages
        s.tiers.load_back(at, s.nodes + base, s.table + base, device_run, run - device_run)
        r.moves += 1
        s.fetching += 1
        s.journal.note(now, r.id, "prefetch", f"{run - device_run} pages from the host tier")
    else:
        s.requests.fire(r, E_RESERVE)
        begin(s, at, now)
    return True


cdef int reserve(Scheduler s, int at, int run, int device_run, int total, double now) except -1:
    """Takes the slot, writes the page table: matched pages, then fresh ones. The first `run` nodes are in scratch."""
    cdef Req* r = &s.requests.R[at]
    cdef int32_t* nodes
    cdef int k, page
    s.num_free_slots -= 1
    r.slot = s.free_slots[s.num_free_slots]
    nodes = s.nodes + <size_t>r.slot * s.max_pages
    for k in range(run):
        nodes[k] = s.scratch[k]
        s.index.nodes[nodes[k]].hits += 1
    for k in range(device_run):
        set_page(s, r, k, s.index.nodes[nodes[k]].dev)
    for k in range(device_run, total):
        page = take_page(s)
        if page < 0:
            raise SchedulerFault("a page that was counted is not there")
        set_page(s, r, k, page)
    r.num_nodes = run
    r.num_pages = total
    r.computed = r.landed = device_run * s.page_size
    if r.is_retracted:
        r.is_retracted = 0
        r.retracted_s += now - r.retracted_at
        s.journal.note(now, r.id, "resumed")
    s.c_queries += r.num_tokens
    s.c_hit_device += r.computed
    return 0


cdef int begin(Scheduler s, int at, double now) except -1:
    """The request waits for token budget. What is cached counts as such once it is in place."""
    cdef Req* r = &s.requests.R[at]
    if r.started < 0:
        r.started = now
        s.c_prompt += r.num_prompt
    if r.cached < 0 and r.load < 0:
        r.cached = r.computed
        s.c_cached += r.cached
    return 0


cdef bint soon_shared(Scheduler s, int at, int run, int limit) noexcept:
    """Whether a running prefill is computing the pages this request misses from `run` on, and enough of them.

    Enough: half of what it would have to compute, or 512 tokens.
    """
    cdef Req* r = &s.requests.R[at]
    cdef Req* other
    cdef Build build
    cdef int i, k, flight, row, slot
    for flight in range(s.num_flights + 1):
        # The oldest flights first; the last turn looks at those that have chunks left to launch.
        if flight < s.num_flights:
            slot = (s.ring_at - s.num_flights + flight + s.max_flights + 1) % (s.max_flights + 1)
            build = <Build>s.ring[slot]
            row = build.num_rows - build.num_decode
        else:
            build = None
            row = s.num_filling
        for i in range(row):
            k = s.filling[i] if build is None else build.reqs[build.num_decode + i]
            other = &s.requests.R[k]
            if other.num_nodes > run or other.num_keys <= run or other.slot < 0 or other.private_rest:
                continue
            if other.state != S_PREFILLING and other.state != S_PREFILLED and other.state != S_BOOTSTRAPPING:
                continue
            k = run
            while k < limit and k < other.num_keys and other.keys[k].lo == r.keys[k].lo:
                k += 1
            k = (k - run) * s.page_size
            if k > 0 and (2 * k >= r.num_tokens - run * s.page_size or k >= 512):
                return True
    return False
