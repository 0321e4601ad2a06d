from libc.stdint cimport int32_t, int64_t, uint8_t


cdef class Build:
    cdef object slots, starts, counts, samples, prefill, tslot, tindex, tpage, released, zero
    cdef int32_t* p_slots
    cdef int32_t* p_starts
    cdef int32_t* p_counts
    cdef uint8_t* p_samples
    cdef int32_t* p_prefill
    cdef int32_t* p_tslot
    cdef int32_t* p_tindex
    cdef int32_t* p_tpage
    cdef int32_t* p_released
    cdef int32_t* p_zero
    cdef int32_t* reqs
    cdef int num_decode
    cdef int num_rows, num_sampled, num_prefill, num_deltas, cap_deltas, num_released, cap_released, num_zero, cap_zero
    cdef int64_t step
    cdef list admitted
    cdef tuple waits
    cdef list views
    cdef int32_t seen[10]
    cdef grow_deltas(self, int size)
    cdef grow_released(self, int size)
    cdef grow_zero(self, int size)
    cdef void forget_views(self) noexcept
    cdef object view(self, int which, object array, int size)
    cdef int add_delta(self, int slot, int index, int page) except -1
    cdef int add_released(self, int slot) except -1
    cdef int wait_for(self, int64_t move_id) except -1
    cdef int add_zero(self, int page) except -1
    cdef void drop_deltas(self, int slot) noexcept
    cdef object finish(self, int64_t step, int num_decode, list moves)
    cdef void reset(self) noexcept
