from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t


cdef struct Record:
    int64_t id
    int32_t* tokens
    int32_t count
    int32_t num_prompt
    int32_t max_total
    int32_t min_total
    int32_t emitted
    int32_t stops[2]
    int32_t due
    uint8_t live
    uint8_t aborted
    uint8_t failed
    uint64_t hash
    int32_t hashed
    int32_t cell
    int32_t salt
    double deadline


cdef uint64_t absorb(uint64_t h, int32_t token) noexcept
cdef int32_t next_cell(int32_t before, int32_t token) noexcept


cdef class Oracle:
    cdef readonly int64_t tokens_checked
    cdef readonly list live
    cdef Record* records
    cdef uint32_t* weights
    cdef int longest, vocab
    cdef bint has_room(self, int64_t request_id) noexcept
    cdef int open(self, object spec, list tokens) except -1
    cdef Record* recall(self, int64_t request_id) noexcept
    cdef Record* peek(self, int64_t request_id) noexcept
    cdef Record* find(self, int64_t request_id) except NULL
    cdef void extend(self, Record* record, int token) noexcept
    cdef int token_of(self, uint64_t h) noexcept
    cdef int receive(self, int64_t request_id, int token) except -1
    cdef int check_end(self, int64_t request_id) except -1
    cdef int check_deadlines(self, double now) except -1
    cdef Record* close(self, object end, double now) except NULL
    cdef int lose_all(self) except -1
