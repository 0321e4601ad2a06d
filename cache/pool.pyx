"""A pool of pages: which are free, and what state every other one is in. One pool a tier.

Owns the free list and a byte of state a page. Knows nothing about keys, requests or what a page holds.

    FREE -> ACTIVE (one owner) <-> SHARED (several) -> CACHED (indexed, nobody holds it) -> FREE
    FENCED: given up, but a launched step may still read it. IN_FLIGHT: the source or target of a copy.
"""

from libc.stdint cimport int32_t, uint8_t
from libc.stdlib cimport calloc, free

STATE_NAMES = ("free", "cached", "active", "shared", "fenced", "in_flight")


class PoolError(RuntimeError):
    """A page was given back twice or does not exist: our bug."""


cdef void tally_states(const uint8_t* state, int first, int end, int* tally) noexcept:
    """Counts states 0..5 over [first, end): one pass a state, which compilers turn into vector code."""
    cdef int i, j, count
    for j in range(6):
        count = 0
        for i in range(first, end):
            count += state[i] == j
        tally[j] = count


cdef class PagePool:
    """`num_pages` pages, all free. The page freed last is taken first."""

    def __cinit__(self, int num_pages):
        if num_pages < 0:
            raise ValueError(f"{num_pages} pages")
        self.num_pages = num_pages
        self.num_free = num_pages
        self.stack = <int32_t*>calloc(num_pages + 1, sizeof(int32_t))
        self.state = <uint8_t*>calloc(num_pages + 1, 1)
        self.dirty = <uint8_t*>calloc(num_pages + 1, 1)
        self.node = <int32_t*>calloc(num_pages + 1, sizeof(int32_t))
        if self.stack == NULL or self.state == NULL or self.dirty == NULL or self.node == NULL:
            raise MemoryError()
        cdef int i
        for i in range(num_pages):
            self.stack[i] = num_pages - 1 - i
            self.node[i] = -1

    def __dealloc__(self):
        free(self.stack)
        free(self.state)
        free(self.dirty)
        free(self.node)

    cdef int take(self) noexcept:
        """A free page, now ACTIVE, or -1."""
        if self.num_free == 0:
            return -1
        self.num_free -= 1
        cdef int page = self.stack[self.num_free]
        self.state[page] = PAGE_ACTIVE
        return page

    cdef int give(self, int page) except -1:
        """Frees a page."""
        if page < 0 or page >= self.num_pages:
            raise PoolError(f"page {page} is not one of {self.num_pages}")
        if self.state[page] == PAGE_FREE:
            raise PoolError(f"page {page} was freed twice")
        self.state[page] = PAGE_FREE
        self.node[page] = -1
        self.stack[self.num_free] = page
        self.num_free += 1
        return 0

    @property
    def free(self) -> int:
        return self.num_free

    def allocate(self) -> int:
        """A page, or -1 when none is free."""
        return self.take()

    def release(self, int page) -> None:
        """Gives a page back. Raises PoolError when it is free already."""
        self.give(page)

    def count(self) -> dict:
        """Pages in each state, by name."""
        cdef int tally[6]
        tally_states(self.state, 0, self.num_pages, tally)
        return {name: tally[i] for i, name in enumerate(STATE_NAMES)}

    def bins(self, int limit=4096):
        """(pages a bin, one byte a bin): the most used state of each bin; at most `limit` bins."""
        cdef int width = max(1, (self.num_pages + limit - 1) // limit)
        cdef int count = (self.num_pages + width - 1) // width
        cdef bytearray out = bytearray(count)
        cdef uint8_t[::1] view
        cdef int tally[6]
        cdef int i, j, best
        if count == 0:
            return width, b""
        view = out
        for i in range(count):
            tally_states(self.state, i * width, min(self.num_pages, (i + 1) * width), tally)
            best = 0
            for j in range(1, 6):
                if tally[j] > tally[best]:
                    best = j
            view[i] = best
        return width, bytes(out)

    def integrity(self) -> None:
        """Raises PoolError unless the free list and the states agree."""
        cdef int i, free_states = 0
        cdef uint8_t* seen
        for i in range(self.num_pages):
            if self.state[i] == PAGE_FREE:
                free_states += 1
        if free_states != self.num_free:
            raise PoolError(f"{free_states} pages are marked free, the free list holds {self.num_free}")
        seen = <uint8_t*>calloc(self.num_pages + 1, 1)
        try:
            for i in range(self.num_free):
                if seen[self.stack[i]] or self.state[self.stack[i]] != PAGE_FREE:
                    raise PoolError(f"page {self.stack[i]} is on the free list wrongly")
                seen[self.stack[i]] = 1
        finally:
            free(seen)
