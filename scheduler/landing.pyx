"""What a landed step gives: tokens to their requests, pages to the index, ends to those that reached theirs."""

cimport numpy as cnp
from libc.stdint cimport int32_t, int64_t

import numpy as np

from tsd.scheduler.core cimport Scheduler
from tsd.scheduler.ending cimport drained, end
from tsd.scheduler.pages cimport publish
from tsd.scheduler.plan cimport Build
from tsd.scheduler.requests cimport E_FINISH, E_TOKEN, S_ABORTING, S_DRAINING, S_PREFILLED, S_RETRACTING, Req
from tsd.scheduler.retraction cimport park

from tsd.scheduler.types import SchedulerFault, StepOutcome

cnp.import_array()


cdef object step_landed(Scheduler s, int64_t step, object tokens, object failed, double now):
    cdef Build build
    cdef int i, at, count = 0, token
    cdef Req* r
    cdef cnp.ndarray array, out_ids, out_tokens, out_rows
    cdef int32_t* sampled
    cdef int64_t* ids
    cdef int32_t* emitted
    cdef int32_t* rows
    cdef cnp.npy_intp size
    cdef bint any_failed = len(failed) > 0, over
    if s.num_flights == 0:
        raise SchedulerFault(f"step {step} landed, none is in flight")
    build = <Build>s.ring[(s.ring_at - s.num_flights + s.max_flights + 1) % (s.max_flights + 1)]
    if build.step != step:
        raise SchedulerFault(f"step {step} landed, step {build.step} is the oldest in flight")
    if (
        cnp.PyArray_Check(tokens)
        and cnp.PyArray_TYPE(<cnp.ndarray>tokens) == cnp.NPY_INT32
        and cnp.PyArray_IS_C_CONTIGUOUS(<cnp.ndarray>tokens)
    ):
        array = tokens
    else:
        array = np.ascontiguousarray(tokens, dtype=np.int32)
    if cnp.PyArray_SIZE(array) < build.num_rows:
        raise SchedulerFault(f"step {step} has {build.num_rows} rows and {cnp.PyArray_SIZE(array)} tokens")
    sampled = <int32_t*>cnp.PyArray_DATA(array)
    size = build.num_sampled
    out_ids = cnp.PyArray_SimpleNew(1, &size, cnp.NPY_INT64)
    out_tokens = cnp.PyArray_SimpleNew(1, &size, cnp.NPY_INT32)
    out_rows = cnp.PyArray_SimpleNew(1, &size, cnp.NPY_INT32)
    ids = <int64_t*>cnp.PyArray_DATA(out_ids)
    emitted = <int32_t*>cnp.PyArray_DATA(out_tokens)
    rows = <int32_t*>cnp.PyArray_DATA(out_rows)
    s.num_flights -= 1
    s.fence.lift(step)
    for i in range(build.num_rows):
        at = build.reqs[i]
        r = &s.requests.R[at]
        r.flights -= 1
        r.samples -= build.p_samples[i]
        over = r.state == S_DRAINING or r.state == S_ABORTING
        if not over and r.load >= 0:
            raise SchedulerFault(f"step {step} landed before load-back {r.load}, for which it waited, was done")
        if over or r.tainted:
            # Nobody gets it: the request has ended, or a copy failed to fill pages that this was computed from.
            s.c_dropped += build.p_samples[i]
            if any_failed and i in failed:
                r.poisoned = 1
            if r.flights == 0 and r.moves == 0:
                if over:
                    drained(s, at)
                else:
                    park(s, at)
            continue
        if any_failed and i in failed:
            r.poisoned = 1
            s.c_errors += 1
            end(s, at, E_FINISH, now, "error", "the forward pass gave no usable result for this request")
            continue
        r.landed = build.p_starts[i] + build.p_counts[i]
        publish(s, r)
        if build.p_samples[i]:
            token = sampled[i]
            ids[count] = r.id
            emitted[count] = token
            rows[count] = i
            count += 1
            s.requests.append(r, token)
            if r.state == S_PREFILLED:
                s.requests.fire(r, E_TOKEN)
            if r.first_token < 0:
                r.first_token = now
                s.journal.note(now, r.id, "decode")
            if s.requests.stops(r, token):
                r.stop_token = token
                end(s, at, E_FINISH, now, "stop", "")
                continue
            if r.num_tokens >= r.max_total:
                end(s, at, E_FINISH, now, "length", "")
                continue
        if r.state == S_RETRACTING and r.flights == 0 and r.moves == 0:
            park(s, at)
    s.c_generated += count
    if count != size:
        return StepOutcome(step, out_ids[:count], out_tokens[:count], out_rows[:count])
    return StepOutcome(step, out_ids, out_tokens, out_rows)
