"""Pages kept out of use on somebody's wish: the pools are smaller for a while, without a restart.

Owns the pages it holds. They are taken as they come free (unreferenced cached pages count as free, the coldest first), so
nobody who runs loses one by it. On the device they are lent again, a page at a time, to a request that could not go on
otherwise and waits for nobody: a wish for too many pages slows requests down and never stops them.
"""

from libc.stdint cimport int32_t
from libc.stdlib cimport calloc, free

from tsd.cache.index cimport PrefixIndex


cdef class Withheld:
    """Of the two pools of an index."""

    def __cinit__(self, PrefixIndex index):
        self.index = index
        self.device = <int32_t*>calloc(index.device.num_pages + 1, sizeof(int32_t))
        self.host = <int32_t*>calloc(index.host.num_pages + 1, sizeof(int32_t))
        if self.device == NULL or self.host == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self.device)
        free(self.host)

    cdef int want(self, int device, int host) except -1:
        """From now on this many pages of each pool; those above that go back at once. Raises ValueError."""
        if not 0 <= device <= self.index.device.num_pages or not 0 <= host <= self.index.host.num_pages:
            raise ValueError(
                f"{device} device and {host} host pages of {self.index.device.num_pages} and {self.index.host.num_pages}"
            )
        self.device_wanted = device
        self.host_wanted = host
        self.lend(self.num_device - device)
        while self.num_host > host:
            self.num_host -= 1
            self.index.host.give(self.host[self.num_host])
        return 0

    cdef bint short(self) noexcept:
        return self.num_device < self.device_wanted or self.num_host < self.host_wanted

    cdef int gather(self) except -1:
        """Takes what is free and still wanted."""
        cdef int page
        while self.num_device < self.device_wanted:
            page = self.index.take_device()
            if page < 0:
                break
            self.device[self.num_device] = page
            self.num_device += 1
        while self.num_host < self.host_wanted:
            page = self.index.take_host()
            if page < 0:
                break
            self.host[self.num_host] = page
            self.num_host += 1
        return 0

    cdef int lend(self, int count) except -1:
        """Gives up to `count` device pages back to the pool; how many."""
        cdef int given = 0
        while given < count and self.num_device:
            self.num_device -= 1
            self.index.device.give(self.device[self.num_device])
            given += 1
        return given
