from libc.stdint cimport int32_t

from tsd.cache.hashing cimport tsd_key
from tsd.cache.index cimport PrefixIndex


cdef class DiskMap:
    cdef PrefixIndex index
    cdef readonly int capacity, used, storing
    cdef int32_t* before
    cdef int32_t* after
    cdef int32_t head
    cdef int32_t tail
    cdef bint adopt(self, tsd_key key) noexcept
    cdef bint readable(self, int n) noexcept
    cdef list reserve(self, int n)
    cdef int stored(self, int n, bint ok) except -1
    cdef int touch(self, int n) except -1
    cdef int drop(self, int n) except -1
    cdef list clear(self)
    cdef void link(self, int n, bint oldest) noexcept
    cdef void unlink(self, int n) noexcept
