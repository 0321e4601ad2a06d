from libc.stdint cimport int64_t

from tsd.scheduler.core cimport Scheduler
from tsd.scheduler.transfer cimport Transfer

cdef int move_done(Scheduler s, object event, double now) except -1
cdef int layers_landed(Scheduler s, int64_t move_id, double now) except -1
cdef int loaded(Scheduler s, Transfer t, bint ok, double now) except -1
cdef int start(Scheduler s, int at, double now) except -1
