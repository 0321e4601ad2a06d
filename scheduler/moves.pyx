"""What a copy that is done, or well begun, changes for the request that waits for it.

A load-back brings a request's pages layer by layer. Once the first layers are in place the request may run, in steps that
wait on the device for the others; when those fail, whatever such steps computed is dropped and the request starts anew.
"""

from libc.stdint cimport int64_t

from tsd.scheduler.admission cimport begin
from tsd.scheduler.core cimport Scheduler
from tsd.scheduler.ending cimport drained
from tsd.scheduler.pages cimport set_page
from tsd.scheduler.requests cimport E_FETCHED, E_REQUEUE, E_WRITTEN, S_ABORTING, S_PREFETCHING, S_RETRACTING, Req
from tsd.scheduler.retraction cimport park, spoil
from tsd.scheduler.transfer cimport Transfer

from tsd.scheduler.types import SchedulerFault


cdef int move_done(Scheduler s, object event, double now) except -1:
    cdef Transfer t = s.tiers.transfers.pop(event.move_id, None)
    cdef Req* r
    cdef int good = event.good
    if t is None:
        raise SchedulerFault(f"no move {event.move_id} is on its way")
    if t.kind == "store":
        return s.tiers.stored(t, event.ok)
    if t.kind == "write_back":
        s.tiers.written(t, event.ok)
    elif t.kind == "load_back":
        loaded(s, t, event.ok, now)
    elif t.kind == "prefetch":
        r = &s.requests.R[t.req]
        if good < 0:
            good = t.count if event.ok else 0
        s.tiers.prefetched(t, r.keys, r.tokens, min(good, t.count))
        s.c_hit_disk += min(good, t.count) * s.page_size
    if t.req < 0 or t.kind == "load_back":
        return 0
    r = &s.requests.R[t.req]
    r.moves -= 1
    if r.state == S_ABORTING:
        drained(s, t.req)
    elif t.kind == "prefetch":
        s.requests.fire(r, E_REQUEUE)
    else:
        s.requests.fire(r, E_WRITTEN)
        s.requests.recycle(t.req)
    return 0


cdef int layers_landed(Scheduler s, int64_t move_id, double now) except -1:
    """The first layers of a load-back are in place: its request may run, in steps that wait for the others."""
    cdef Transfer t = s.tiers.transfers.get(move_id)
    cdef Req* r
    if t is None or t.kind != "load_back" or t.begun:
        raise SchedulerFault(f"no load-back {move_id} is at its beginning")
    t.begun = 1
    r = &s.requests.R[t.req]
    if r.state == S_PREFETCHING:
        r.load = move_id
        r.computed = r.num_nodes * s.page_size
        start(s, t.req, now)
    return 0


cdef int loaded(Scheduler s, Transfer t, bint ok, double now) except -1:
    """A request's host pages are on the device; after a failure they are recomputed."""
    cdef Req* r = &s.requests.R[t.req]
    cdef size_t base = <size_t>r.slot * s.max_pages
    cdef int k, page
    s.tiers.loaded(t, ok, s.fence, s.step - 1 if r.flights else -1)
    r.moves -= 1
    r.load = -1
    if ok:
        for k in range(t.first, t.first + t.count):
            page = s.index.nodes[s.nodes[base + k]].dev
            if page != s.table[base + k]:
                set_page(s, r, k, page)
    else:
        r.num_nodes = t.first
    if r.state == S_ABORTING:
        return drained(s, t.req) if r.flights == 0 else 0
    if ok:
        r.landed = r.num_nodes * s.page_size
        s.c_hit_host += t.count * s.page_size
    elif r.flights:
        return spoil(s, t.req, now)
    if r.flights == 0:
        r.computed = r.num_nodes * s.page_size
        r.landed = r.computed
    if r.state == S_PREFETCHING:
        start(s, t.req, now)
    elif r.state == S_RETRACTING:
        if r.flights == 0:
            park(s, t.req)
    elif r.cached < 0:
        r.cached = r.landed
        s.c_cached += r.cached
    return 0


cdef int start(Scheduler s, int at, double now) except -1:
    """A Prefetching request goes on to its prefill."""
    s.fetching -= 1
    s.requests.fire(&s.requests.R[at], E_FETCHED)
    begin(s, at, now)
    s.filling[s.num_filling] = at
    s.num_filling += 1
    return 0
