from tsd.scheduler.core cimport Scheduler

cdef int admit(Scheduler s, double now) except -2
cdef bint try_reserve(Scheduler s, int at, double now) except -1
cdef int reserve(Scheduler s, int at, int run, int device_run, int total, double now) except -1
cdef int begin(Scheduler s, int at, double now) except -1
cdef bint soon_shared(Scheduler s, int at, int run, int limit) noexcept
