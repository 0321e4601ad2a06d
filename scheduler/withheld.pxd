from libc.stdint cimport int32_t

from tsd.cache.index cimport PrefixIndex


cdef class Withheld:
    cdef PrefixIndex index
    cdef int device_wanted, host_wanted
    cdef int num_device, num_host
    cdef int32_t* device
    cdef int32_t* host
    cdef int want(self, int device, int host) except -1
    cdef bint short(self) noexcept
    cdef int gather(self) except -1
    cdef int lend(self, int count) except -1
