from tsd.scheduler.core cimport Scheduler
from tsd.scheduler.requests cimport Req
from tsd.scheduler.transfer cimport Transfer

cdef int take_page(Scheduler s) except -2
cdef int set_page(Scheduler s, Req* r, int k, int page) except -1
cdef int release(Scheduler s, Req* r) except -1
cdef int publish(Scheduler s, Req* r) except -1
cdef Transfer keep(Scheduler s, Req* r)
