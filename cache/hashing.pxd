from libc.stdint cimport int32_t, uint64_t


cdef extern from "page_hash.h" nogil:
    ctypedef struct tsd_key:
        uint64_t lo
        uint64_t hi
    tsd_key tsd_page_hash(tsd_key parent, const uint64_t* tokens, int words, const uint64_t* nh, const uint64_t* sip)


cdef class PageHasher:
    cdef readonly int page_size
    cdef int words
    cdef uint64_t* nh
    cdef uint64_t* scratch
    cdef uint64_t sip[2]
    cdef bytes secret
    cdef bytes namespace
    cdef dict roots
    cdef tsd_key root(self, bytes salt)
    cdef tsd_key next(self, tsd_key parent, const int32_t* tokens) noexcept
