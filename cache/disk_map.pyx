"""Which nodes of the index have a block on disk, and in which order they are given up: least recently used first.

A block is being stored until its write landed, then it is readable. That is a claim, not a proof: a block may be gone or
rotten, which the read reports and which makes the page a miss. Blocks that were there before this process are known by
their keys alone; their nodes are loose (no ids, no parent) until a request with that prefix comes by. Knows nothing about
files or requests.
"""

from libc.stdint cimport int32_t
from libc.stdlib cimport calloc, free

from tsd.cache.hashing cimport tsd_key
from tsd.cache.index cimport DISK_NONE, DISK_STORED, DISK_STORING, DISK_TOLD, TIER_DISK, PrefixIndex
from tsd.cache.node_table cimport NODE_FREE

from tsd.cache.node_table import IndexFault


cdef class DiskMap:
    """At most `capacity` blocks of an index made with room for as many."""

    def __cinit__(self, PrefixIndex index, int capacity):
        self.index = index
        self.capacity = capacity
        self.head = self.tail = -1
        if capacity:
            self.before = <int32_t*>calloc(index.capacity, sizeof(int32_t))
            self.after = <int32_t*>calloc(index.capacity, sizeof(int32_t))
            if self.before == NULL or self.after == NULL:
                raise MemoryError()

    def __dealloc__(self):
        free(self.before)
        free(self.after)

    cdef bint adopt(self, tsd_key key) noexcept:
        """Takes in a block that was on disk before, less recently used than all those known; False: no room for it."""
        cdef int n = self.index.by_key(key)
        if n >= 0 and self.index.nodes[n].disk != DISK_NONE:
            return True
        if self.used >= self.capacity:
            return False
        if n < 0:
            n = self.index.place_loose(key)
            if n < 0:
                return False
        self.index.nodes[n].disk = DISK_STORED
        self.link(n, True)
        return True

    cdef bint readable(self, int n) noexcept:
        """Whether the node's block is written."""
        return self.index.nodes[n].disk >= DISK_STORED

    cdef list reserve(self, int n):
        """Makes room for the block of a node, about to be written: the keys to discard for it.

        None: the disk has or gets it already, or every block is being written.
        """
        cdef list evicted = []
        cdef int oldest
        if self.index.nodes[n].disk != DISK_NONE:
            return None
        while self.used >= self.capacity:
            oldest = self.head
            while oldest >= 0 and self.index.nodes[oldest].disk == DISK_STORING:
                oldest = self.after[oldest]
            if oldest < 0:
                return None
            evicted.append(self.index.key_of(oldest))
            self.drop(oldest)
        self.index.nodes[n].disk = DISK_STORING
        self.storing += 1
        self.link(n, False)
        return evicted

    cdef int stored(self, int n, bint ok) except -1:
        """A write landed or failed. Its node is pinned."""
        if self.index.nodes[n].disk != DISK_STORING:
            raise IndexFault(f"node {n} is not being stored")
        self.storing -= 1
        if not ok:
            self.unlink(n)
            self.index.nodes[n].disk = DISK_NONE
        elif self.index.record:
            self.index.nodes[n].disk = DISK_TOLD
            self.index.tell(n, TIER_DISK, True)
        else:
            self.index.nodes[n].disk = DISK_STORED
        return 0

    cdef int touch(self, int n) except -1:
        self.unlink(n)
        self.link(n, False)
        return 0

    cdef int drop(self, int n) except -1:
        """A readable block is given up, or turned out missing or rotten. The node may be gone afterwards."""
        self.unlink(n)
        if self.index.nodes[n].disk == DISK_TOLD:
            self.index.tell(n, TIER_DISK, False)
        self.index.nodes[n].disk = DISK_NONE
        return self.index.collect(n)

    cdef list clear(self):
        """Gives up every readable block: their keys, to be discarded. Writes on their way stay."""
        cdef list gone = []
        cdef int n = self.head, after
        while n >= 0:
            after = self.after[n]
            if self.readable(n):
                gone.append(self.index.key_of(n))
                self.drop(n)
            n = after
        return gone

    cdef void link(self, int n, bint oldest) noexcept:
        if oldest:
            self.before[n] = -1
            self.after[n] = self.head
            if self.head >= 0:
                self.before[self.head] = n
            else:
                self.tail = n
            self.head = n
        else:
            self.before[n] = self.tail
            self.after[n] = -1
            if self.tail >= 0:
                self.after[self.tail] = n
            else:
                self.head = n
            self.tail = n
        self.used += 1

    cdef void unlink(self, int n) noexcept:
        if self.before[n] >= 0:
            self.after[self.before[n]] = self.after[n]
        else:
            self.head = self.after[n]
        if self.after[n] >= 0:
            self.before[self.after[n]] = self.before[n]
        else:
            self.tail = self.before[n]
        self.used -= 1

    def integrity(self) -> None:
        """Raises IndexFault unless the list holds exactly the nodes with a block. O(nodes)."""
        cdef int n = self.head, seen = 0, storing = 0, marked = 0, i
        for i in range(self.index.high):
            marked += self.index.nodes[i].used != NODE_FREE and self.index.nodes[i].disk != DISK_NONE
        while n >= 0 and seen <= self.used:
            if self.index.nodes[n].used == NODE_FREE or self.index.nodes[n].disk == DISK_NONE:
                raise IndexFault(f"node {n} is on the disk's list and has no block")
            storing += self.index.nodes[n].disk == DISK_STORING
            seen += 1
            n = self.after[n]
        if seen != self.used or marked != self.used or storing != self.storing or self.used > self.capacity:
            raise IndexFault(
                f"{seen} blocks are listed, {marked} marked, {self.used} counted; {storing} and {self.storing} being stored"
            )
