from tsd.scheduler.core cimport Scheduler
from tsd.scheduler.plan cimport Build
from tsd.scheduler.requests cimport Req

cdef int decode_rows(Scheduler s, Build build) noexcept
cdef bint ready(Scheduler s, Req* r) noexcept
cdef int fill(Scheduler s, Build build, int budget, double now) except -1
cdef int advance_prefill(Scheduler s, Build build, int at, int* budget, double now) except -1
cdef int chunk_row(Scheduler s, Build build, int at, int budget, double now) except -1
cdef object admission(Scheduler s, int at)
