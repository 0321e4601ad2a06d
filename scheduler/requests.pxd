from libc.stdint cimport int32_t, int64_t, uint8_t

from tsd.cache.hashing cimport PageHasher, tsd_key

cdef enum:
    S_SUBMITTED = 0
    S_PREFETCHING = 1
    S_BOOTSTRAPPING = 2
    S_PREFILLING = 3
    S_PREFILLED = 4
    S_DECODING = 5
    S_DRAINING = 6
    S_WRITING_BACK = 7
    S_RETRACTING = 8
    S_RETRACTED = 9
    S_ABORTING = 10
    S_FINISHED = 11

cdef enum:
    E_RESERVE = 0
    E_FETCH = 1
    E_FETCHED = 2
    E_REQUEUE = 3
    E_CHUNK = 4
    E_LAST_CHUNK = 5
    E_TOKEN = 6
    E_FINISH = 7
    E_ABORT = 8
    E_RETRACT = 9
    E_DRAINED = 10
    E_WRITE_BACK = 11
    E_WRITTEN = 12


cdef struct Req:
    int64_t id
    int64_t seq
    int32_t state
    int32_t slot
    int32_t num_prompt
    int32_t num_tokens
    int32_t cap_tokens
    int32_t max_total
    int32_t min_total
    int32_t computed
    int32_t landed
    int32_t flights
    int32_t samples
    int32_t moves
    int32_t num_pages
    int32_t num_nodes
    int32_t num_keys
    int32_t cap_keys
    int32_t num_stops
    int32_t priority
    int32_t prev
    int32_t next
    int32_t passed
    int32_t outranked
    int32_t retractions
    int32_t cached
    int32_t need
    int32_t stop_token
    uint8_t announced
    uint8_t private_rest
    uint8_t poisoned
    uint8_t is_retracted
    uint8_t fetched
    uint8_t tainted
    int64_t tried
    int64_t load
    double arrival
    double blocked
    double started
    double first_token
    double retracted_at
    double retracted_s
    double deadline
    tsd_key root
    int32_t* tokens
    tsd_key* keys
    int32_t* stops


cdef class Requests:
    cdef Req* R
    cdef int capacity, num_spare
    cdef int32_t* spare
    cdef list payloads
    cdef list prompts
    cdef int64_t next_seq
    cdef int32_t wait_head, wait_tail
    cdef int num_waiting
    cdef int64_t waiting_tokens
    cdef int32_t retr_head, retr_tail
    cdef int num_retracted
    cdef int page_size
    cdef PageHasher hasher
    cdef int grow(self, int size) except -1
    cdef int open(self, object spec, object prompt, int64_t longest, double now) except -1
    cdef int fill_in(self, Req* r, object spec, object prompt, int64_t longest, double now) except -1
    cdef int recycle(self, int at) except -1
    cdef int fire(self, Req* r, int event) except -1
    cdef int extend_keys(self, Req* r, int pages) except -1
    cdef int append(self, Req* r, int token) except -1
    cdef bint stops(self, Req* r, int token) noexcept
    cdef void enqueue(self, int at, double ageing) noexcept
    cdef void dequeue(self, int at) noexcept
    cdef void enqueue_retracted(self, int at) noexcept
    cdef void link(self, int at, int after, int32_t* head, int32_t* tail) noexcept
