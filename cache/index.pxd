from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

from tsd.cache.hashing cimport tsd_key
from tsd.cache.pool cimport PagePool


cdef enum:
    TIER_DEVICE = 0
    TIER_HOST = 1
    TIER_DISK = 2


cdef enum:
    NODE_FREE = 0
    NODE_USED = 1
    NODE_LOOSE = 2


cdef enum:
    DISK_NONE = 0
    DISK_STORING = 1
    DISK_STORED = 2
    DISK_TOLD = 3


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


cdef class PrefixIndex:
    cdef readonly int page_size
    cdef readonly int capacity
    cdef readonly int num_nodes
    cdef int high
    cdef int evictable
    cdef int host_evictable
    cdef long long device_evictions
    cdef long long host_evictions
    cdef long long inserts
    cdef PagePool device
    cdef PagePool host
    cdef Node* nodes
    cdef int32_t* tokens
    cdef int32_t* spare
    cdef int num_spare
    cdef Bucket* table
    cdef uint64_t mask
    cdef int32_t dhead
    cdef int32_t dtail
    cdef int32_t hhead
    cdef int32_t htail
    cdef list changes
    cdef bint record
    cdef int by_key(self, tsd_key key) noexcept
    cdef int seek(self, tsd_key key, const int32_t* tokens) noexcept
    cdef int find(self, int parent, tsd_key key, const int32_t* tokens) noexcept
    cdef void claim(self, int n, int parent, const int32_t* tokens) noexcept
    cdef int place_loose(self, tsd_key key) noexcept
    cdef int match(self, const tsd_key* keys, const int32_t* tokens, int limit, int32_t* found, int* device_run) noexcept
    cdef int insert(self, int parent, tsd_key key, const int32_t* tokens, int page) except -2
    cdef int insert_host(self, int parent, tsd_key key, const int32_t* tokens, int page) except -2
    cdef int place(self, int parent, tsd_key key, const int32_t* tokens) noexcept
    cdef int adopt(self, int n, int page) except -1
    cdef int tell(self, int n, int tier, bint stored) except -1
    cdef bytes key_of(self, int n)
    cdef object parent_key(self, int n)
    cdef bytes tokens_of(self, int n)
    cdef void ref(self, int n) noexcept
    cdef int unref(self, int n) except -1
    cdef void pin(self, int n) noexcept
    cdef int unpin(self, int n) except -1
    cdef int set_host(self, int n, int page) except -1
    cdef int drop_host(self, int n) except -1
    cdef int drop_device(self, int n) except -1
    cdef void settle(self, int n) noexcept
    cdef int take_device(self) except -2
    cdef int take_host(self) except -2
    cdef int collect(self, int n) except -1
    cdef void forget(self, int n) noexcept
    cdef void dlink(self, int n) noexcept
    cdef void dunlink(self, int n) noexcept
    cdef void hlink(self, int n) noexcept
    cdef void hunlink(self, int n) noexcept
