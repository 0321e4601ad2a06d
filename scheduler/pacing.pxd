from libc.stdint cimport int64_t


cdef class Pace:
    cdef int hold, balance
    cdef bint open
    cdef int held
    cdef int64_t c_held
    cdef double load
    cdef int budget(self, int num_decode, int waiting, int ready, int most) noexcept
    cdef int patience(self) noexcept
    cdef int size(self, int requests, int most) noexcept
    cdef void took(self, int num_prefill, int left) noexcept
