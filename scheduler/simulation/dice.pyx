"""The world's only source of chance: everything that happens follows from its seed."""

from libc.stdint cimport uint64_t


cdef class Dice:
    """xorshift64*."""

    def __cinit__(self, uint64_t seed):
        self.state = seed * <uint64_t>0x9E3779B97F4A7C15 + 1

    cdef int draw(self, int below) noexcept:
        """Uniform in [0, below)."""
        self.state ^= self.state >> 12
        self.state ^= self.state << 25
        self.state ^= self.state >> 27
        return <int>(((self.state * <uint64_t>0x2545F4914F6CDD1D) >> 33) % <uint64_t>below)

    cdef bint luck(self, int parts) noexcept:
        """True `parts` times in 1024."""
        return parts > 0 and self.draw(1024) < parts
