from tsd.scheduler.core cimport Scheduler

cdef int end(Scheduler s, int at, int event, double now, str reason, str message) except -1
cdef int drained(Scheduler s, int at) except -1
cdef int expire(Scheduler s, double now) except -1
