"""Pages given up while launched steps may still read them: freed when the last such step has landed.

Owns the pages in it. Knows nothing about why they were given up.
"""

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, malloc

from tsd.cache.pool cimport PAGE_FENCED, PagePool


cdef class Fence:
    """A ring of (page, step), steps ascending."""

    def __cinit__(self, PagePool pool):
        self.pool = pool
        self.capacity = 64
        self.pages = <int32_t*>malloc(self.capacity * sizeof(int32_t))
        self.steps = <int64_t*>malloc(self.capacity * sizeof(int64_t))
        if self.pages == NULL or self.steps == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self.pages)
        free(self.steps)

    cdef int add(self, int page, int64_t step) except -1:
        """Frees `page` once step number `step` has landed."""
        cdef int32_t* pages
        cdef int64_t* steps
        cdef int i
        if self.count == self.capacity:
            pages = <int32_t*>malloc(2 * self.capacity * sizeof(int32_t))
            steps = <int64_t*>malloc(2 * self.capacity * sizeof(int64_t))
            if pages == NULL or steps == NULL:
                raise MemoryError()
            for i in range(self.count):
                pages[i] = self.pages[(self.head + i) % self.capacity]
                steps[i] = self.steps[(self.head + i) % self.capacity]
            free(self.pages)
            free(self.steps)
            self.pages = pages
            self.steps = steps
            self.head = 0
            self.capacity *= 2
        i = (self.head + self.count) % self.capacity
        self.pages[i] = page
        self.steps[i] = step
        self.count += 1
        self.pool.state[page] = PAGE_FENCED
        return 0

    cdef int lift(self, int64_t step) except -1:
        """Step number `step` landed, and so did all before it."""
        while self.count and self.steps[self.head] <= step:
            self.pool.give(self.pages[self.head])
            self.head = (self.head + 1) % self.capacity
            self.count -= 1
        return 0
