from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

from tsd.cache.hashing cimport tsd_key

cdef extern from *:
    """
    #define tsd_prefetch(p) __builtin_prefetch(p)
    """
    void tsd_prefetch(const void* p) nogil


cdef enum:
    NODE_FREE = 0
    NODE_USED = 1
    NODE_LOOSE = 2


cdef struct Node:
    tsd_key key
    int32_t parent
    int32_t children
    int32_t host_children
    int32_t refs
    int32_t dev
    int32_t host
    int32_t dprev
    int32_t dnext
    int32_t hprev
    int32_t hnext
    int32_t pins
    int32_t depth
    uint32_t hits
    uint8_t used
    uint8_t copying
    uint8_t loading
    uint8_t disk


cdef struct Bucket:
    uint64_t tag
    int32_t node
    uint32_t home


cdef class NodeTable:
    cdef readonly int page_size
    cdef readonly int capacity
    cdef readonly int num_nodes
    cdef int high
    cdef long long inserts
    cdef Node* nodes
    cdef int32_t* tokens
    cdef int32_t* spare
    cdef int num_spare
    cdef Bucket* table
    cdef uint64_t mask
    cdef int make_room(self, int page_size, int capacity) except -1
    cdef int by_key(self, tsd_key key) noexcept
    cdef int seek(self, tsd_key key, const int32_t* tokens) noexcept
    cdef int find(self, int parent, tsd_key key, const int32_t* tokens) noexcept
    cdef void claim(self, int n, int parent, const int32_t* tokens) noexcept
    cdef int place_loose(self, tsd_key key) noexcept
    cdef int match(self, const tsd_key* keys, const int32_t* tokens, int limit, int32_t* found, int* device_run) noexcept
    cdef int place(self, int parent, tsd_key key, const int32_t* tokens) noexcept
    cdef bytes key_of(self, int n)
    cdef object parent_key(self, int n)
    cdef bytes tokens_of(self, int n)
    cdef void forget(self, int n) noexcept
