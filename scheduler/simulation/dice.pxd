from libc.stdint cimport uint64_t


cdef class Dice:
    cdef uint64_t state
    cdef int draw(self, int below) noexcept
    cdef bint luck(self, int parts) noexcept
