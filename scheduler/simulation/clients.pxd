from libc.stdint cimport int64_t

from tsd.scheduler.simulation.dice cimport Dice
from tsd.scheduler.simulation.oracle cimport Oracle, Record


cdef class Clients:
    cdef Dice dice
    cdef Oracle oracle
    cdef object knobs
    cdef list prefixes
    cdef int64_t next_id
    cdef int longest, chance_submit, chance_abort, chance_deadline, target
    cdef int submit(self, object scheduler, double now) except -1
    cdef int abort(self, object scheduler, double now) except -1
    cdef int remember(self, Record* record) except -1
