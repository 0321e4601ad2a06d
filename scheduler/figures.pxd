from tsd.scheduler.core cimport Scheduler

cdef int tell_evictions(Scheduler s, double now) except -1
cdef dict snapshot_of(Scheduler s)
cdef dict counters_of(Scheduler s)
