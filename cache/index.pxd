from libc.stdint cimport int32_t

from tsd.cache.hashing cimport tsd_key
from tsd.cache.node_table cimport NodeTable
from tsd.cache.pool cimport PagePool


cdef enum:
    TIER_DEVICE = 0
    TIER_HOST = 1
    TIER_DISK = 2


cdef enum:
    DISK_NONE = 0
    DISK_STORING = 1
    DISK_STORED = 2
    DISK_TOLD = 3


cdef class PrefixIndex(NodeTable):
    cdef int evictable
    cdef int host_evictable
    cdef long long device_evictions
    cdef long long host_evictions
    cdef PagePool device
    cdef PagePool host
    cdef int32_t dhead
    cdef int32_t dtail
    cdef int32_t hhead
    cdef int32_t htail
    cdef list changes
    cdef bint record
    cdef int insert(self, int parent, tsd_key key, const int32_t* tokens, int page) except -2
    cdef int insert_host(self, int parent, tsd_key key, const int32_t* tokens, int page) except -2
    cdef int adopt(self, int n, int page) except -1
    cdef int tell(self, int n, int tier, bint stored) except -1
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
    cdef void dlink(self, int n) noexcept
    cdef void dunlink(self, int n) noexcept
    cdef void hlink(self, int n) noexcept
    cdef void hunlink(self, int n) noexcept
