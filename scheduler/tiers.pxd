from libc.stdint cimport int32_t, int64_t

from tsd.cache.disk_map cimport DiskMap
from tsd.cache.fence cimport Fence
from tsd.cache.hashing cimport tsd_key
from tsd.cache.index cimport PrefixIndex
from tsd.cache.pool cimport PagePool
from tsd.scheduler.transfer cimport Transfer


cdef class Tiers:
    cdef PagePool device
    cdef PagePool host
    cdef PrefixIndex index
    cdef DiskMap disk
    cdef int threshold
    cdef dict transfers
    cdef list pending
    cdef int64_t next_move
    cdef int device_moves
    cdef Transfer begin(self, str kind, int size)
    cdef int ship(self, Transfer t, object sources, object targets) except -1
    cdef int load_back(self, int req, int32_t* nodes, int32_t* pages, int first, int count) except -1
    cdef int loaded(self, Transfer t, bint ok, Fence fence, int64_t step) except -1
    cdef Transfer write_back(self, int32_t* nodes, int num_nodes)
    cdef int written(self, Transfer t, bint ok) except -1
    cdef int store(self, Transfer source) except -1
    cdef int stored(self, Transfer t, bint ok) except -1
    cdef int adopt(self, list keys) except -1
    cdef int prefetch(self, int req, tsd_key* keys, int32_t* tokens, int32_t* chain, int run, int limit) except -1
    cdef int prefetched(self, Transfer t, tsd_key* keys, int32_t* tokens, int good) except -1
    cdef int discard(self, list keys) except -1
