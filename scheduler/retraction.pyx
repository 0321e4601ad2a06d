"""Retraction: who gives up its pages when none is left, and how it goes back to the queue.

The victim is the latest arrival, never the oldest. It runs no more; its launched steps still land and count.
"""

from tsd.scheduler.core cimport Scheduler
from tsd.scheduler.pages cimport keep, release, take_page
from tsd.scheduler.requests cimport E_DRAINED, E_RETRACT, S_BOOTSTRAPPING, S_PREFILLING, S_RETRACTING, Req


cdef int pressure(Scheduler s, int at, double now) except -2:
    """A page for row `at` of the batch, retracting the latest arrivals; -1 when it must sit this step out."""
    cdef int page, latest
    while True:
        page = take_page(s)
        if page >= 0:
            return page
        if s.leaving or s.fence.count or s.tiers.device_moves:
            return -1
        latest = victim(s)
        if latest < 0:
            if s.withheld.lend(1):
                continue
            return -1
        retract(s, latest, now)
        if latest == at:
            return -1


cdef int victim(Scheduler s) noexcept:
    """The latest arrival that holds pages; -1 when only the oldest does."""
    cdef int i, latest = -1, oldest = -1
    cdef int at
    for i in range(s.num_running + s.num_filling):
        at = s.running[i] if i < s.num_running else s.filling[i - s.num_running]
        if latest < 0 or s.requests.R[at].seq > s.requests.R[latest].seq:
            latest = at
        if oldest < 0 or s.requests.R[at].seq < s.requests.R[oldest].seq:
            oldest = at
    return latest if latest != oldest else -1


cdef int retract(Scheduler s, int at, double now) except -1:
    cdef Req* r = &s.requests.R[at]
    cdef int before = r.state
    s.requests.fire(r, E_RETRACT)
    if before == S_BOOTSTRAPPING or before == S_PREFILLING:
        s.num_filling = s.drop(s.filling, s.num_filling, at)
    else:
        s.num_running = s.drop(s.running, s.num_running, at)
    r.retractions += 1
    s.c_retractions += 1
    s.leaving += 1
    r.retracted_at = now
    s.journal.event(now, "retraction", r.id, "pages", f"{r.num_pages} pages, {r.num_tokens} tokens")
    s.journal.note(now, r.id, "retracted")
    if r.flights == 0 and r.moves == 0:
        park(s, at)
    return 0


cdef int spoil(Scheduler s, int at, double now) except -1:
    """A copy that the request's launched steps wait for has failed: what they compute is dropped, then it starts anew."""
    cdef Req* r = &s.requests.R[at]
    r.tainted = 1
    if r.state != S_RETRACTING:
        retract(s, at, now)
    elif r.flights == 0 and r.moves == 0:
        park(s, at)
    return 0


cdef int park(Scheduler s, int at) except -1:
    """A retracted request whose launched steps and copies have landed gives its pages up and queues again."""
    cdef Req* r = &s.requests.R[at]
    s.leaving -= 1
    keep(s, r)
    release(s, r)
    s.requests.fire(r, E_DRAINED)
    if r.tainted:
        r.tainted = r.poisoned = 0
    r.computed = r.landed = 0
    r.private_rest = 0
    r.need = -1
    r.tried = -1000
    s.requests.enqueue_retracted(at)
    return 0
