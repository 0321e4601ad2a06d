from libc.stdint cimport int32_t, uint8_t

cdef enum PageState:
    PAGE_FREE = 0
    PAGE_CACHED = 1
    PAGE_ACTIVE = 2
    PAGE_SHARED = 3
    PAGE_FENCED = 4
    PAGE_IN_FLIGHT = 5


cdef class PagePool:
    cdef readonly int num_pages
    cdef int num_free
    cdef int32_t* stack
    cdef uint8_t* state
    cdef uint8_t* dirty
    cdef int32_t* node
    cdef int take(self) noexcept
    cdef int give(self, int page) except -1
