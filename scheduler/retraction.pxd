from tsd.scheduler.core cimport Scheduler

cdef int pressure(Scheduler s, int at, double now) except -2
cdef int victim(Scheduler s) noexcept
cdef int retract(Scheduler s, int at, double now) except -1
cdef int spoil(Scheduler s, int at, double now) except -1
cdef int park(Scheduler s, int at) except -1
