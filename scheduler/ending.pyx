"""The end of a request, whatever state it is in: its one terminal event, then its slot and pages when nobody reads them."""

from tsd.scheduler.core cimport Scheduler
from tsd.scheduler.pages cimport keep, release
from tsd.scheduler.requests cimport (
    E_ABORT,
    E_DRAINED,
    E_FINISH,
    E_WRITE_BACK,
    S_BOOTSTRAPPING,
    S_DECODING,
    S_DRAINING,
    S_FINISHED,
    S_PREFETCHING,
    S_PREFILLED,
    S_PREFILLING,
    S_RETRACTED,
    S_RETRACTING,
    S_SUBMITTED,
    Req,
)
from tsd.scheduler.transfer cimport Transfer

from tsd.scheduler.types import FinishedRequest


cdef int end(Scheduler s, int at, int event, double now, str reason, str message) except -1:
    """The terminal event of a request; its resources go now, or when the last step that reads them lands."""
    cdef Req* r = &s.requests.R[at]
    cdef int before = r.state
    s.requests.fire(r, event)
    if before == S_SUBMITTED or before == S_RETRACTED:
        s.requests.dequeue(at)
    elif before == S_BOOTSTRAPPING or before == S_PREFILLING:
        s.num_filling = s.drop(s.filling, s.num_filling, at)
    elif before == S_PREFILLED or before == S_DECODING:
        s.num_running = s.drop(s.running, s.num_running, at)
    elif before == S_RETRACTING:
        s.leaving -= 1
    elif before == S_PREFETCHING:
        if r.slot < 0:
            s.requests.dequeue(at)
        else:
            s.fetching -= 1
    if r.is_retracted:
        r.retracted_s += now - r.retracted_at
    s.finished.append(
        FinishedRequest(
            r.id,
            reason,
            r.num_prompt,
            max(0, r.cached),
            r.num_tokens - r.num_prompt,
            r.stop_token,
            (r.started if r.started >= 0 else now) - r.arrival,
            (r.first_token if r.first_token >= 0 else now) - r.started if r.started >= 0 else 0.0,
            now - r.first_token if r.first_token >= 0 else 0.0,
            r.retractions,
            r.retracted_s,
            message,
            s.requests.payloads[at],
        )
    )
    s.requests.payloads[at] = None
    del s.by_id[r.id]
    s.c_finished += 1
    kind = "error" if reason == "error" else "finish" if event == E_FINISH else "abort"
    s.journal.event(now, kind, r.id, reason, message)
    s.journal.close(now, r.id, reason)
    if r.state == S_FINISHED:
        s.requests.recycle(at)
        return 0
    s.leaving += 1
    if r.flights == 0 and r.moves == 0:
        drained(s, at)
    return 0


cdef int drained(Scheduler s, int at) except -1:
    """No launched step or copy reads a Draining or Aborting request any more.

    What an aborted one computed is kept too, but nothing of it waits for the copy.
    """
    cdef Req* r = &s.requests.R[at]
    cdef Transfer transfer
    cdef bint draining
    s.leaving -= 1
    transfer = keep(s, r)
    draining = r.state == S_DRAINING
    release(s, r)
    if transfer is None or not draining:
        s.requests.fire(r, E_DRAINED)
        s.requests.recycle(at)
    else:
        s.requests.fire(r, E_WRITE_BACK)
        r.moves += 1
        transfer.req = at
    return 0


cdef int expire(Scheduler s, double now) except -1:
    """Ends every request whose deadline has passed."""
    cdef double soonest = float("inf")
    for at in list(s.by_id.values()):
        if s.requests.R[<int>at].deadline <= now:
            end(s, at, E_ABORT, now, "deadline", "")
        elif s.requests.R[<int>at].deadline < soonest:
            soonest = s.requests.R[<int>at].deadline
    s.soonest = soonest
    return 0
