"""The arrays of one execution plan, built in place and reused round robin.

Owns the buffers a plan's views look into and the list of which request each row belongs to. Knows no policy.
The scheduler keeps max_in_flight + 1 of these: those in flight, and the one it builds (page-table changes and released
slots gather in it between plans too).
"""

cimport numpy as cnp
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free

import numpy as np

from tsd.scheduler.types import ExecutionPlan

cnp.import_array()


cdef object grown(object old, int used, int size):
    """A larger int32 array with the first `used` entries of `old`."""
    fresh = np.zeros(size, np.int32)
    if used:
        fresh[:used] = old[:used]
    return fresh


cdef class Build:
    """Room for `rows` rows and `tokens` prefill tokens; the lists of changes grow as needed."""

    def __cinit__(self, int rows, int tokens):
        cdef int i
        self.slots = np.zeros(rows, np.int32)
        self.starts = np.zeros(rows, np.int32)
        self.counts = np.zeros(rows, np.int32)
        self.samples = np.zeros(rows, np.uint8)
        self.prefill = np.zeros(tokens, np.int32)
        self.p_slots = <int32_t*>cnp.PyArray_DATA(self.slots)
        self.p_starts = <int32_t*>cnp.PyArray_DATA(self.starts)
        self.p_counts = <int32_t*>cnp.PyArray_DATA(self.counts)
        self.p_samples = <uint8_t*>cnp.PyArray_DATA(self.samples)
        self.p_prefill = <int32_t*>cnp.PyArray_DATA(self.prefill)
        self.reqs = <int32_t*>calloc(rows, sizeof(int32_t))
        if self.reqs == NULL:
            raise MemoryError()
        self.reset()
        self.views = [None] * 10
        self.grow_deltas(256)
        self.grow_released(max(16, rows))
        self.grow_zero(16)
        self.admitted = []
        self.forget_views()

    def __dealloc__(self):
        free(self.reqs)

    cdef grow_deltas(self, int size):
        self.tslot = grown(self.tslot, self.num_deltas, size)
        self.tindex = grown(self.tindex, self.num_deltas, size)
        self.tpage = grown(self.tpage, self.num_deltas, size)
        self.p_tslot = <int32_t*>cnp.PyArray_DATA(self.tslot)
        self.p_tindex = <int32_t*>cnp.PyArray_DATA(self.tindex)
        self.p_tpage = <int32_t*>cnp.PyArray_DATA(self.tpage)
        self.cap_deltas = size
        self.forget_views()

    cdef grow_released(self, int size):
        self.released = grown(self.released, self.num_released, size)
        self.p_released = <int32_t*>cnp.PyArray_DATA(self.released)
        self.cap_released = size
        self.forget_views()

    cdef grow_zero(self, int size):
        self.zero = grown(self.zero, self.num_zero, size)
        self.p_zero = <int32_t*>cnp.PyArray_DATA(self.zero)
        self.cap_zero = size
        self.forget_views()

    cdef void forget_views(self) noexcept:
        cdef int i
        for i in range(10):
            self.seen[i] = -1

    cdef object view(self, int which, object array, int size):
        """`array[:size]`, the same object as last time when the size is the same."""
        if self.seen[which] != size:
            self.views[which] = array[:size]
            self.seen[which] = size
        return self.views[which]

    cdef int add_delta(self, int slot, int index, int page) except -1:
        if self.num_deltas == self.cap_deltas:
            self.grow_deltas(self.cap_deltas * 2)
        self.p_tslot[self.num_deltas] = slot
        self.p_tindex[self.num_deltas] = index
        self.p_tpage[self.num_deltas] = page
        self.num_deltas += 1
        return 0

    cdef int add_released(self, int slot) except -1:
        if self.num_released == self.cap_released:
            self.grow_released(self.cap_released * 2)
        self.p_released[self.num_released] = slot
        self.num_released += 1
        return 0

    cdef int add_zero(self, int page) except -1:
        if self.num_zero == self.cap_zero:
            self.grow_zero(self.cap_zero * 2)
        self.p_zero[self.num_zero] = page
        self.num_zero += 1
        return 0

    cdef int wait_for(self, int64_t move_id) except -1:
        """A row of the step reads pages that this copy fills."""
        self.waits += (move_id,)
        return 0

    cdef void drop_deltas(self, int slot) noexcept:
        """A slot given up between two plans takes its page-table changes with it: the next owner writes its own."""
        cdef int i, kept = 0
        for i in range(self.num_deltas):
            if self.p_tslot[i] != slot:
                self.p_tslot[kept] = self.p_tslot[i]
                self.p_tindex[kept] = self.p_tindex[i]
                self.p_tpage[kept] = self.p_tpage[i]
                kept += 1
        self.num_deltas = kept

    cdef object finish(self, int64_t step, int num_decode, list moves):
        """The plan; the builder must not change until it lands."""
        cdef object admitted = self.admitted
        self.step = step
        self.num_decode = num_decode
        self.admitted = []
        return ExecutionPlan(
            step,
            self.num_rows,
            num_decode,
            num_decode + self.num_prefill,
            self.view(0, self.slots, self.num_rows),
            self.view(1, self.starts, self.num_rows),
            self.view(2, self.counts, self.num_rows),
            self.view(3, self.samples, self.num_rows),
            self.view(4, self.prefill, self.num_prefill),
            admitted,
            self.view(5, self.tslot, self.num_deltas),
            self.view(6, self.tindex, self.num_deltas),
            self.view(7, self.tpage, self.num_deltas),
            self.view(8, self.released, self.num_released),
            self.view(9, self.zero, self.num_zero),
            moves,
            self.waits,
        )

    cdef void reset(self) noexcept:
        self.num_rows = self.num_sampled = self.num_prefill = 0
        self.num_deltas = self.num_released = self.num_zero = 0
        self.waits = ()
