from libc.stdint cimport int32_t

from tsd.scheduler.simulation.dice cimport Dice
from tsd.scheduler.simulation.executor cimport Executor


cdef enum:
    WRITE_BACK
    LOAD_BACK
    STORE
    PREFETCH
    DISCARD


cdef class Copy:
    cdef object move
    cdef int kind, count, delay
    cdef int32_t* sources
    cdef int32_t* targets
    cdef list keys
    cdef list before
    cdef bint begun, sound


cdef class Copies:
    cdef Dice dice
    cdef Executor executor
    cdef int page_size, max_delay, chance_fail, chance_rot, chance_early
    cdef int32_t* host
    cdef int32_t* host_readers
    cdef int32_t* host_writers
    cdef readonly list moving
    cdef readonly dict disk
    cdef dict contents
    cdef public bint disk_full
    cdef bytes content(self, int page)
    cdef int begin(self, object move) except -1
    cdef int lock(self, int page, bint write) except -1
    cdef object step(self)
    cdef Copy find(self, object move_id)
    cdef bint under_way(self, tuple moves)
    cdef int bring(self, tuple moves) except -1
    cdef object end(self, Copy copy)
    cdef int end_page(self, Copy copy, int i, bint done) except -1
    cdef int abandon(self) except -1
