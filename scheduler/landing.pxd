from libc.stdint cimport int64_t

from tsd.scheduler.core cimport Scheduler

cdef object step_landed(Scheduler s, int64_t step, object tokens, object failed, double now)
