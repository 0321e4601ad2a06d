from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t


cdef int32_t* ints(object array) except NULL
cdef uint8_t* flags_of(object array) except NULL


cdef class StepBlocks:
    cdef readonly uint32_t serial
    cdef uint32_t _answered
    cdef object _blocks, _answers
    cdef list _views
    cdef int _sizes[64]
    cdef int32_t* _first_block
    cdef int32_t* _first_answer
    cdef int _block_words, _answer_words, _most, _width
    cdef int _rows, _changes, _sampled
    cdef int32_t* _block(self, uint32_t serial) noexcept
    cdef int32_t* _answer(self, uint32_t serial) noexcept
    cdef int _free(self) except -1
    cpdef int stage(self, slots, starts) except -1
    cpdef int stage_pages(self, slots, index, pages) except -1
    cpdef uint32_t send(self) except? 0
