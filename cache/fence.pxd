from libc.stdint cimport int32_t, int64_t

from tsd.cache.pool cimport PagePool


cdef class Fence:
    cdef PagePool pool
    cdef int32_t* pages
    cdef int64_t* steps
    cdef int head, count, capacity
    cdef int add(self, int page, int64_t step) except -1
    cdef int lift(self, int64_t step) except -1
