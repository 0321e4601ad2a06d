from libc.stdint cimport int32_t, int64_t

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
    cdef int64_t move_id, step
    cdef int kind, count, delay
    cdef bint started, told
    cdef int32_t* sources
    cdef int32_t* targets
    cdef list keys
    cdef list before


cdef class Copies:
    cdef Dice dice
    cdef Executor executor
    cdef int page_size, max_delay, chance_fail, chance_rot, chance_layers
    cdef int32_t* host
    cdef int32_t* host_readers
    cdef int32_t* host_writers
    cdef readonly list moving
    cdef set on_their_way
    cdef readonly dict disk
    cdef dict contents
    cdef public bint disk_full
    cdef bytes content(self, int page)
    cdef int begin(self, object move, int64_t step) except -1
    cdef int start(self, Copy copy) except -1
    cdef int lock(self, int page, bint write) except -1
    cdef object step(self)
    cdef object end(self, Copy copy)
    cdef int end_page(self, Copy copy, int i, bint done) except -1
    cdef int abandon(self) except -1
