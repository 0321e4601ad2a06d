"""What a finished copy changes for the request that waits for it."""

from tsd.scheduler.admission cimport begin
from tsd.scheduler.core cimport Scheduler
from tsd.scheduler.ending cimport drained
from tsd.scheduler.pages cimport set_page
from tsd.scheduler.requests cimport E_FETCHED, E_REQUEUE, E_WRITTEN, S_ABORTING, Req
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


cdef int loaded(Scheduler s, Transfer t, bint ok, double now) except -1:
    """A Prefetching request's host pages are on the device; after a failure they are recomputed."""
    cdef Req* r = &s.requests.R[t.req]
    cdef size_t base = <size_t>r.slot * s.max_pages
    cdef int k, page
    s.tiers.loaded(t, ok)
    r.moves -= 1
    if ok:
        for k in range(t.first, t.first + t.count):
            page = s.index.nodes[s.nodes[base + k]].dev
            if page != s.table[base + k]:
                set_page(s, r, k, page)
    else:
        r.num_nodes = t.first
    if r.state == S_ABORTING:
        return drained(s, t.req)
    s.fetching -= 1
    s.requests.fire(r, E_FETCHED)
    if ok:
        r.computed = r.landed = r.num_nodes * s.page_size
        s.c_hit_host += t.count * s.page_size
    begin(s, t.req, now)
    s.filling[s.num_filling] = t.req
    s.num_filling += 1
    return 0
