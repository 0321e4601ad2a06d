"""The scheduler: which rows run, which pages they use, and what becomes of each request.

Owns requests, request slots, page ownership, the waiting queues and the plans in flight. Knows no tensors, no models,
and no clock but the `now` it is given.

A request's pages, in order:   [ nodes 0 .. num_nodes ) of the prefix index | private [ num_nodes .. num_pages )
A request's tokens, in order:  prompt | generated;  landed <= computed <= num_tokens + samples in flight - 1 (decode)
"""

cimport numpy as cnp
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memmove, memset

import numpy as np

from tsd.cache.hashing cimport PageHasher, tsd_key
from tsd.cache.index cimport PrefixIndex
from tsd.cache.pool cimport PAGE_FENCED, PAGE_FREE, PagePool

from tsd.scheduler.states import TRANSITIONS, Event, State
from tsd.scheduler.types import (
    Admission,
    ExecutionPlan,
    FinishedRequest,
    MoveDone,
    Refused,
    StepLanded,
    StepOutcome,
)

cnp.import_array()

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

cdef enum:
    RETRY_STEPS = 8
    PRIORITY_PASSES = 1024

cdef int NEXT[12][13]
for _s in range(12):
    for _e in range(13):
        NEXT[_s][_e] = -1
for (_source, _event), _target in TRANSITIONS.items():
    NEXT[<int>int(_source)][<int>int(_event)] = int(_target)

STATE_LABELS = tuple(state.name.lower() for state in State)


class IllegalTransition(RuntimeError):
    """An event that the request's state does not know: our bug."""


class SchedulerFault(RuntimeError):
    """The scheduler contradicts itself, or was driven wrongly (a step landed out of order)."""


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
    int32_t num_pages
    int32_t num_nodes
    int32_t num_keys
    int32_t cap_keys
    int32_t num_stops
    int32_t priority
    int32_t prev
    int32_t next
    int32_t passed
    int32_t retractions
    int32_t cached
    int32_t need
    int32_t stop_token
    uint8_t announced
    uint8_t private_rest
    uint8_t poisoned
    uint8_t is_retracted
    int64_t tried
    double arrival
    double started
    double first_token
    double retracted_at
    double retracted_s
    double deadline
    tsd_key root
    int32_t* tokens
    tsd_key* keys
    int32_t* stops


cdef class Build:
    """The arrays of one plan and the bookkeeping of its flight; reused round robin."""

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
    cdef int num_rows, num_sampled, num_prefill, num_deltas, cap_deltas, num_released, cap_released, num_zero, cap_zero
    cdef int64_t step
    cdef list admitted
    cdef list views
    cdef int32_t seen[10]

    def __cinit__(self, int rows, int tokens):
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
        self.cap_deltas = self.cap_released = self.cap_zero = 0
        self.num_deltas = self.num_released = self.num_zero = 0
        self.grow_deltas(256)
        self.grow_released(rows)
        self.grow_zero(16)
        self.admitted = []
        self.views = [None] * 10
        cdef int i
        for i in range(10):
            self.seen[i] = -1

    def __dealloc__(self):
        free(self.reqs)

    cdef grow_deltas(self, int size):
        old = (self.tslot, self.tindex, self.tpage)
        self.tslot = np.zeros(size, np.int32)
        self.tindex = np.zeros(size, np.int32)
        self.tpage = np.zeros(size, np.int32)
        if self.num_deltas:
            self.tslot[: self.num_deltas] = old[0][: self.num_deltas]
            self.tindex[: self.num_deltas] = old[1][: self.num_deltas]
            self.tpage[: self.num_deltas] = old[2][: self.num_deltas]
        self.p_tslot = <int32_t*>cnp.PyArray_DATA(self.tslot)
        self.p_tindex = <int32_t*>cnp.PyArray_DATA(self.tindex)
        self.p_tpage = <int32_t*>cnp.PyArray_DATA(self.tpage)
        self.cap_deltas = size
        self.forget_views()

    cdef grow_released(self, int size):
        old = self.released
        self.released = np.zeros(size, np.int32)
        if self.num_released:
            self.released[: self.num_released] = old[: self.num_released]
        self.p_released = <int32_t*>cnp.PyArray_DATA(self.released)
        self.cap_released = size
        self.forget_views()

    cdef grow_zero(self, int size):
        old = self.zero
        self.zero = np.zeros(size, np.int32)
        if self.num_zero:
            self.zero[: self.num_zero] = old[: self.num_zero]
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

    cdef object plan(self, int num_decode, list moves):
        cdef int i, total = num_decode + self.num_prefill
        return ExecutionPlan(
            self.step,
            self.num_rows,
            num_decode,
            total,
            self.view(0, self.slots, self.num_rows),
            self.view(1, self.starts, self.num_rows),
            self.view(2, self.counts, self.num_rows),
            self.view(3, self.samples, self.num_rows),
            self.view(4, self.prefill, self.num_prefill),
            self.admitted,
            self.view(5, self.tslot, self.num_deltas),
            self.view(6, self.tindex, self.num_deltas),
            self.view(7, self.tpage, self.num_deltas),
            self.view(8, self.released, self.num_released),
            self.view(9, self.zero, self.num_zero),
            moves,
        )

    cdef void reset(self) noexcept:
        self.num_rows = self.num_sampled = self.num_prefill = 0
        self.num_deltas = self.num_released = self.num_zero = 0


cdef class Scheduler:
    """See the module. Not thread-safe: one loop drives it."""

    cdef readonly object config
    cdef int page_size, max_slots, max_pages, chunk, max_flights, window
    cdef bint mixed, caching, last_was_prefill
    cdef PagePool pool
    cdef PagePool host
    cdef PrefixIndex index
    cdef PageHasher hasher
    # requests
    cdef Req* R
    cdef int cap_reqs, num_spare_reqs
    cdef int32_t* spare_reqs
    cdef dict by_id
    cdef list payloads
    cdef list prompts
    cdef int64_t next_seq
    # slots
    cdef int32_t* free_slots
    cdef int num_free_slots
    cdef int32_t* table
    cdef int32_t* nodes
    cdef int64_t* delta_step
    cdef int32_t* scratch
    # lists
    cdef int32_t* running
    cdef int num_running
    cdef int32_t* filling
    cdef int num_filling
    cdef int wait_head, wait_tail, num_waiting
    cdef int64_t waiting_tokens
    cdef int retr_head, retr_tail, num_retracted
    cdef int leaving
    cdef int num_deadlines
    cdef double soonest
    # plans
    cdef list ring
    cdef int ring_at, num_flights, oldest
    cdef int64_t step
    cdef int32_t* fence_page
    cdef int64_t* fence_step
    cdef int fence_head, fence_count, fence_cap
    cdef list finished
    # counters
    cdef int64_t c_steps, c_submitted, c_prompt, c_cached, c_generated, c_retractions, c_aborts, c_refusals, c_errors
    cdef int64_t c_finished, c_queries, c_hit_device, c_hit_host, c_hit_disk, c_dropped

    def __cinit__(self, config):
        cdef int i
        if config.page_size < 1 or config.num_pages < 1 or config.max_num_seqs < 1 or config.max_in_flight < 1:
            raise ValueError("page_size, num_pages, max_num_seqs and max_in_flight must be at least 1")
        if config.chunked_prefill_size < 1 or config.max_model_len < 2:
            raise ValueError("chunked_prefill_size must be at least 1 and max_model_len at least 2")
        self.config = config
        self.page_size = config.page_size
        self.max_slots = config.max_num_seqs
        self.max_pages = min(config.num_pages, (config.max_model_len + self.page_size - 1) // self.page_size)
        self.chunk = config.chunked_prefill_size
        self.max_flights = config.max_in_flight
        self.window = config.overtake_window
        self.mixed = config.mixed_batch
        self.caching = config.prefix_cache
        self.pool = PagePool(config.num_pages)
        self.host = PagePool(0)
        self.hasher = PageHasher(self.page_size, config.hash_secret, config.namespace)
        self.index = PrefixIndex(self.page_size, self.pool, self.host)
        self.by_id = {}
        self.payloads = []
        self.prompts = []
        self.finished = []
        self.cap_reqs = 0
        self.grow_requests(max(64, 2 * self.max_slots))
        self.free_slots = <int32_t*>calloc(self.max_slots, sizeof(int32_t))
        self.table = <int32_t*>calloc(<size_t>self.max_slots * self.max_pages, sizeof(int32_t))
        self.nodes = <int32_t*>calloc(<size_t>self.max_slots * self.max_pages, sizeof(int32_t))
        self.delta_step = <int64_t*>calloc(self.max_slots, sizeof(int64_t))
        self.scratch = <int32_t*>calloc(self.max_pages + 1, sizeof(int32_t))
        self.running = <int32_t*>calloc(self.max_slots, sizeof(int32_t))
        self.filling = <int32_t*>calloc(self.max_slots, sizeof(int32_t))
        self.fence_cap = 64
        self.fence_page = <int32_t*>calloc(self.fence_cap, sizeof(int32_t))
        self.fence_step = <int64_t*>calloc(self.fence_cap, sizeof(int64_t))
        if (
            self.free_slots == NULL or self.table == NULL or self.nodes == NULL or self.delta_step == NULL
            or self.scratch == NULL or self.running == NULL or self.filling == NULL or self.fence_page == NULL
            or self.fence_step == NULL
        ):
            raise MemoryError()
        for i in range(self.max_slots):
            self.free_slots[i] = self.max_slots - 1 - i
            self.delta_step[i] = -1
        self.num_free_slots = self.max_slots
        self.wait_head = self.wait_tail = self.retr_head = self.retr_tail = -1
        self.soonest = float("inf")
        self.ring = [Build(self.max_slots, self.chunk) for _ in range(self.max_flights + 1)]

    def __dealloc__(self):
        cdef int i
        for i in range(self.cap_reqs):
            free(self.R[i].tokens)
            free(self.R[i].keys)
            free(self.R[i].stops)
        free(self.R)
        free(self.spare_reqs)
        free(self.free_slots)
        free(self.table)
        free(self.nodes)
        free(self.delta_step)
        free(self.scratch)
        free(self.running)
        free(self.filling)
        free(self.fence_page)
        free(self.fence_step)

    # ---- requests

    cdef int grow_requests(self, int size) except -1:
        cdef Req* bigger = <Req*>realloc(self.R, size * sizeof(Req))
        cdef int32_t* spare
        cdef int i
        if bigger == NULL:
            raise MemoryError()
        self.R = bigger
        spare = <int32_t*>realloc(self.spare_reqs, size * sizeof(int32_t))
        if spare == NULL:
            raise MemoryError()
        self.spare_reqs = spare
        memset(&self.R[self.cap_reqs], 0, (size - self.cap_reqs) * sizeof(Req))
        for i in range(size - 1, self.cap_reqs - 1, -1):
            self.R[i].state = S_FINISHED
            self.spare_reqs[self.num_spare_reqs] = i
            self.num_spare_reqs += 1
        self.payloads.extend([None] * (size - self.cap_reqs))
        self.prompts.extend([None] * (size - self.cap_reqs))
        self.cap_reqs = size
        return 0

    cdef int fire(self, Req* r, int event) except -1:
        """The one place a request changes state."""
        cdef int target = NEXT[r.state][event]
        if target < 0:
            raise IllegalTransition(
                f"event {Event(event).name.lower()} in state {STATE_LABELS[r.state]} of request {r.id}"
            )
        r.state = target
        return 0

    def submit(self, spec, double now) -> None:
        """Queues a request. Raises Refused when it can never run, or when the queue is full."""
        prompt = np.ascontiguousarray(spec.prompt, dtype=np.int32)
        cdef int64_t length = prompt.shape[0]
        cdef int64_t pool_tokens = <int64_t>self.pool.num_pages * self.page_size
        cdef int64_t longest = min(<int64_t>self.config.max_model_len, pool_tokens)
        cdef int i, at
        cdef Req* r
        if length < 1 or spec.max_tokens < 1:
            raise ValueError("a request needs at least one prompt token and one token to generate")
        try:
            if spec.request_id in self.by_id:
                raise Refused("duplicate_id", f"request id {spec.request_id} is in use")
            if length + 1 > self.config.max_model_len:
                raise Refused(
                    "context_length",
                    f"the prompt has {length} tokens; with one to generate, at most {self.config.max_model_len} fit",
                )
            if length + 1 > pool_tokens:
                raise Refused(
                    "never_fits", f"the prompt has {length} tokens; the KV cache holds {pool_tokens} in all"
                )
            if self.num_waiting >= self.config.max_queued_requests:
                raise Refused("queue_full", f"{self.num_waiting} requests are waiting")
            if self.num_waiting and self.waiting_tokens + length > self.config.max_queued_tokens:
                raise Refused("queue_full", f"{self.waiting_tokens} prompt tokens are waiting")
        except Refused:
            self.c_refusals += 1
            raise
        if self.num_spare_reqs == 0:
            self.grow_requests(self.cap_reqs * 2)
        self.num_spare_reqs -= 1
        at = self.spare_reqs[self.num_spare_reqs]
        r = &self.R[at]
        memset(r, 0, sizeof(Req))
        r.id = spec.request_id
        r.seq = self.next_seq
        self.next_seq += 1
        r.state = S_SUBMITTED
        r.slot = -1
        r.stop_token = -1
        r.num_prompt = r.num_tokens = length
        r.max_total = min(longest, length + spec.max_tokens)
        r.min_total = min(longest, length + spec.min_tokens)
        r.cap_tokens = min(<int64_t>r.max_total, length + 256)
        r.tokens = <int32_t*>malloc(r.cap_tokens * sizeof(int32_t))
        r.cap_keys = length // self.page_size + 1
        r.keys = <tsd_key*>malloc(r.cap_keys * sizeof(tsd_key))
        r.num_stops = len(spec.stop_token_ids)
        r.stops = <int32_t*>malloc(max(1, r.num_stops) * sizeof(int32_t))
        if r.tokens == NULL or r.keys == NULL or r.stops == NULL:
            raise MemoryError()
        memcpy(r.tokens, cnp.PyArray_DATA(prompt), length * sizeof(int32_t))
        for i in range(r.num_stops):
            r.stops[i] = spec.stop_token_ids[i]
        r.priority = spec.priority
        r.arrival = now
        r.started = r.first_token = -1.0
        r.need = -1
        r.tried = -1000
        r.deadline = float("inf")
        if spec.deadline is not None:
            r.deadline = spec.deadline
            self.num_deadlines += 1
            self.soonest = min(self.soonest, r.deadline)
        if self.caching:
            r.root = self.hasher.root(spec.salt)
            self.extend_keys(r, length // self.page_size)
        self.payloads[at] = spec.payload
        self.prompts[at] = prompt
        self.by_id[spec.request_id] = at
        self.enqueue(at)
        self.c_submitted += 1

    cdef int extend_keys(self, Req* r, int pages) except -1:
        """Makes the keys of the first `pages` pages known; each is computed once in a request's life."""
        cdef tsd_key* bigger
        cdef int k = r.num_keys
        if pages > r.cap_keys:
            bigger = <tsd_key*>realloc(r.keys, 2 * pages * sizeof(tsd_key))
            if bigger == NULL:
                raise MemoryError()
            r.keys = bigger
            r.cap_keys = 2 * pages
        while k < pages:
            r.keys[k] = self.hasher.next(r.keys[k - 1] if k else r.root, r.tokens + <size_t>k * self.page_size)
            k += 1
        r.num_keys = k
        return 0

    cdef void enqueue(self, int at) noexcept:
        """Into the waiting queue: by priority, then arrival."""
        cdef Req* r = &self.R[at]
        cdef int after = self.wait_tail
        while after >= 0 and self.R[after].priority > r.priority and self.R[after].passed < PRIORITY_PASSES:
            self.R[after].passed += 1
            after = self.R[after].prev
        r.prev = after
        if after >= 0:
            r.next = self.R[after].next
            self.R[after].next = at
        else:
            r.next = self.wait_head
            self.wait_head = at
        if r.next >= 0:
            self.R[r.next].prev = at
        else:
            self.wait_tail = at
        self.num_waiting += 1
        self.waiting_tokens += r.num_prompt

    cdef void dequeue(self, int at) noexcept:
        """Out of the waiting or the retracted queue."""
        cdef Req* r = &self.R[at]
        if r.prev >= 0:
            self.R[r.prev].next = r.next
        elif r.is_retracted:
            self.retr_head = r.next
        else:
            self.wait_head = r.next
        if r.next >= 0:
            self.R[r.next].prev = r.prev
        elif r.is_retracted:
            self.retr_tail = r.prev
        else:
            self.wait_tail = r.prev
        if r.is_retracted:
            self.num_retracted -= 1
        else:
            self.num_waiting -= 1
            self.waiting_tokens -= r.num_prompt

    cdef void enqueue_retracted(self, int at) noexcept:
        """Into the retracted queue, oldest arrival first."""
        cdef Req* r = &self.R[at]
        cdef int after = self.retr_tail
        r.is_retracted = 1
        while after >= 0 and self.R[after].seq > r.seq:
            after = self.R[after].prev
        r.prev = after
        if after >= 0:
            r.next = self.R[after].next
            self.R[after].next = at
        else:
            r.next = self.retr_head
            self.retr_head = at
        if r.next >= 0:
            self.R[r.next].prev = at
        else:
            self.retr_tail = at
        self.num_retracted += 1

    def abort(self, request_id, double now, str reason="abort") -> bool:
        """Ends a live request at once, in whatever state; False when there is none of that id."""
        cdef object found = self.by_id.get(request_id)
        if found is None:
            return False
        self.c_aborts += reason == "abort"
        self.end(found, E_ABORT, now, reason, "")
        return True

    cdef int end(self, int at, int event, double now, str reason, str message) except -1:
        """The terminal event of a request; its resources go now, or when the last step that reads them lands."""
        cdef Req* r = &self.R[at]
        cdef int before = r.state
        self.fire(r, event)
        if before == S_SUBMITTED or before == S_RETRACTED:
            self.dequeue(at)
        elif before == S_BOOTSTRAPPING or before == S_PREFILLING:
            self.num_filling = self.drop(self.filling, self.num_filling, at)
        elif before == S_PREFILLED or before == S_DECODING:
            self.num_running = self.drop(self.running, self.num_running, at)
        elif before == S_RETRACTING:
            self.leaving -= 1
        if before == S_RETRACTED:
            r.retracted_s += now - r.retracted_at
        self.finished.append(
            FinishedRequest(
                r.id,
                reason,
                r.num_prompt,
                r.cached,
                r.num_tokens - r.num_prompt,
                r.stop_token,
                (r.started if r.started >= 0 else now) - r.arrival,
                (r.first_token if r.first_token >= 0 else now) - r.started if r.started >= 0 else 0.0,
                now - r.first_token if r.first_token >= 0 else 0.0,
                r.retractions,
                r.retracted_s,
                message,
                self.payloads[at],
            )
        )
        self.payloads[at] = None
        del self.by_id[r.id]
        self.c_finished += 1
        if r.deadline != float("inf"):
            self.num_deadlines -= 1
            if self.num_deadlines == 0:
                self.soonest = float("inf")
        if r.state == S_FINISHED:
            self.recycle(at)
            return 0
        self.leaving += 1
        if r.flights == 0:
            self.drained(at)
        return 0

    cdef int drained(self, int at) except -1:
        """No launched step reads a Draining or Aborting request any more."""
        cdef Req* r = &self.R[at]
        self.leaving -= 1
        self.release(r)
        self.fire(r, E_DRAINED)
        self.recycle(at)
        return 0

    cdef int recycle(self, int at) except -1:
        cdef Req* r = &self.R[at]
        free(r.tokens)
        free(r.keys)
        free(r.stops)
        r.tokens = NULL
        r.keys = NULL
        r.stops = NULL
        self.prompts[at] = None
        self.payloads[at] = None
        self.spare_reqs[self.num_spare_reqs] = at
        self.num_spare_reqs += 1
        return 0

    cdef int drop(self, int32_t* array, int size, int at) except -1:
        """Removes `at`, keeping the order; returns the new size."""
        cdef int i
        for i in range(size):
            if array[i] == at:
                memmove(array + i, array + i + 1, (size - i - 1) * sizeof(int32_t))
                return size - 1
        raise SchedulerFault(f"request {self.R[at].id} is missing from its list")

    # ---- pages

    cdef int release(self, Req* r) except -1:
        """Gives up the slot, the private pages and the references, deepest first."""
        cdef int32_t* pages
        cdef int32_t* nodes
        cdef int k
        cdef Build build
        if r.slot < 0:
            return 0
        pages = self.table + <size_t>r.slot * self.max_pages
        nodes = self.nodes + <size_t>r.slot * self.max_pages
        for k in range(r.num_pages - 1, r.num_nodes - 1, -1):
            if r.poisoned:
                self.pool.dirty[pages[k]] = 1
            self.pool.give(pages[k])
        for k in range(r.num_nodes - 1, -1, -1):
            self.index.unref(nodes[k])
        r.num_pages = r.num_nodes = 0
        build = <Build>self.ring[self.ring_at]
        if self.delta_step[r.slot] == self.step:
            self.drop_deltas(build, r.slot)
        if r.announced:
            if build.num_released == build.cap_released:
                build.grow_released(build.cap_released * 2)
            build.p_released[build.num_released] = r.slot
            build.num_released += 1
        self.free_slots[self.num_free_slots] = r.slot
        self.num_free_slots += 1
        r.slot = -1
        r.announced = 0
        return 0

    cdef void drop_deltas(self, Build build, int slot) noexcept:
        """A slot given up between two plans takes its page-table changes with it: the next owner writes its own."""
        cdef int i, kept = 0
        for i in range(build.num_deltas):
            if build.p_tslot[i] != slot:
                build.p_tslot[kept] = build.p_tslot[i]
                build.p_tindex[kept] = build.p_tindex[i]
                build.p_tpage[kept] = build.p_tpage[i]
                kept += 1
        build.num_deltas = kept

    cdef int set_page(self, Req* r, int k, int page) except -1:
        """Logical page k of the request is now `page`; the next plan tells the executor."""
        cdef Build build = <Build>self.ring[self.ring_at]
        if build.num_deltas == build.cap_deltas:
            build.grow_deltas(build.cap_deltas * 2)
        self.table[<size_t>r.slot * self.max_pages + k] = page
        build.p_tslot[build.num_deltas] = r.slot
        build.p_tindex[build.num_deltas] = k
        build.p_tpage[build.num_deltas] = page
        build.num_deltas += 1
        self.delta_step[r.slot] = self.step
        return 0

    cdef int take_page(self) except -2:
        """A device page for one owner, cleaned by the next plan when a failed row left it; -1 when there is none."""
        cdef int page = self.index.take_device()
        cdef Build build
        if page >= 0 and self.pool.dirty[page]:
            build = <Build>self.ring[self.ring_at]
            if build.num_zero == build.cap_zero:
                build.grow_zero(build.cap_zero * 2)
            build.p_zero[build.num_zero] = page
            build.num_zero += 1
            self.pool.dirty[page] = 0
        return page

    cdef int fence(self, int page) except -1:
        """Frees a page once every step launched so far has landed."""
        cdef int32_t* pages
        cdef int64_t* steps
        cdef int i
        if self.num_flights == 0:
            self.pool.give(page)
            return 0
        if self.fence_count == self.fence_cap:
            pages = <int32_t*>malloc(2 * self.fence_cap * sizeof(int32_t))
            steps = <int64_t*>malloc(2 * self.fence_cap * sizeof(int64_t))
            if pages == NULL or steps == NULL:
                raise MemoryError()
            for i in range(self.fence_count):
                pages[i] = self.fence_page[(self.fence_head + i) % self.fence_cap]
                steps[i] = self.fence_step[(self.fence_head + i) % self.fence_cap]
            free(self.fence_page)
            free(self.fence_step)
            self.fence_page = pages
            self.fence_step = steps
            self.fence_head = 0
            self.fence_cap *= 2
        i = (self.fence_head + self.fence_count) % self.fence_cap
        self.fence_page[i] = page
        self.fence_step[i] = self.step - 1
        self.fence_count += 1
        self.pool.state[page] = PAGE_FENCED
        return 0

    cdef int lift_fences(self, int64_t step) except -1:
        while self.fence_count and self.fence_step[self.fence_head] <= step:
            self.pool.give(self.fence_page[self.fence_head])
            self.fence_head = (self.fence_head + 1) % self.fence_cap
            self.fence_count -= 1
        return 0

    cdef int publish(self, Req* r) except -1:
        """Indexes the pages whose KV has landed. A page that someone indexed first is used instead of our copy."""
        cdef int full = r.landed // self.page_size
        cdef size_t base = <size_t>r.slot * self.max_pages
        cdef int k, n, page
        cdef int32_t* tokens
        if not self.caching or r.private_rest or r.num_nodes >= full:
            return 0
        self.extend_keys(r, full)
        for k in range(r.num_nodes, full):
            tokens = r.tokens + <size_t>k * self.page_size
            page = self.table[base + k]
            n = self.index.find(r.keys[k], tokens)
            if n < 0:
                n = self.index.insert(self.nodes[base + k - 1] if k else -1, r.keys[k], tokens, page)
                if n < 0:
                    r.private_rest = 1
                    return 0
            else:
                self.index.ref(n)
                if self.index.nodes[n].dev < 0:
                    self.index.adopt(n, page)
                else:
                    self.set_page(r, k, self.index.nodes[n].dev)
                    self.fence(page)
            self.nodes[base + k] = n
            r.num_nodes = k + 1
        return 0

    # ---- retraction

    cdef int pressure(self, int at, double now) except -2:
        """A page for row `at` of the batch, retracting the latest arrivals; -1 when it must sit this step out."""
        cdef int page, victim
        while True:
            page = self.take_page()
            if page >= 0:
                return page
            if self.leaving or self.fence_count:
                return -1
            victim = self.victim()
            if victim < 0:
                return -1
            self.retract(victim, now)
            if victim == at:
                return -1

    cdef int victim(self) noexcept:
        """The latest arrival that holds pages; -1 when only the oldest does."""
        cdef int i, latest = -1, oldest = -1
        cdef int at
        for i in range(self.num_running + self.num_filling):
            at = self.running[i] if i < self.num_running else self.filling[i - self.num_running]
            if latest < 0 or self.R[at].seq > self.R[latest].seq:
                latest = at
            if oldest < 0 or self.R[at].seq < self.R[oldest].seq:
                oldest = at
        return latest if latest != oldest else -1

    cdef int retract(self, int at, double now) except -1:
        cdef Req* r = &self.R[at]
        cdef int before = r.state
        self.fire(r, E_RETRACT)
        if before == S_BOOTSTRAPPING or before == S_PREFILLING:
            self.num_filling = self.drop(self.filling, self.num_filling, at)
        else:
            self.num_running = self.drop(self.running, self.num_running, at)
        r.retractions += 1
        self.c_retractions += 1
        self.leaving += 1
        r.retracted_at = now
        if r.flights == 0:
            self.park(at)
        return 0

    cdef int park(self, int at) except -1:
        """A retracted request whose launched steps have landed gives its pages up and queues again."""
        cdef Req* r = &self.R[at]
        self.leaving -= 1
        self.release(r)
        self.fire(r, E_DRAINED)
        r.computed = r.landed = 0
        r.private_rest = 0
        r.need = -1
        r.tried = -1000
        self.enqueue_retracted(at)
        return 0

    # ---- the plan

    @property
    def in_flight(self) -> int:
        """Plans handed out and not landed."""
        return self.num_flights

    @property
    def has_work(self) -> bool:
        """Whether any request is live or draining."""
        return bool(self.by_id) or self.leaving > 0 or self.num_flights > 0

    def next_plan(self, double now):
        """The next step, or None when nothing can run or max_in_flight plans are out."""
        cdef Build build
        cdef int i, at, num_decode = 0, page
        cdef Req* r
        if self.num_flights >= self.max_flights:
            return None
        if now >= self.soonest:
            self.expire(now)
        build = <Build>self.ring[self.ring_at]
        # Pages first: a victim must not be in the batch already.
        i = 0
        while i < self.num_running:
            at = self.running[i]
            r = &self.R[at]
            if r.computed == r.num_pages * self.page_size and r.num_tokens + r.samples < r.max_total:
                page = self.pressure(at, now)
                if page >= 0:
                    self.set_page(r, r.num_pages, page)
                    r.num_pages += 1
                elif r.state == S_RETRACTING or r.state == S_RETRACTED:
                    continue
            i += 1
        if self.mixed:
            num_decode = self.decode_rows(build)
            if num_decode < self.chunk:
                self.fill(build, self.chunk - num_decode, now)
        else:
            if not (self.last_was_prefill and self.num_running):
                self.fill(build, self.chunk, now)
            if build.num_rows == 0:
                num_decode = self.decode_rows(build)
        if build.num_rows == 0:
            return None
        self.last_was_prefill = build.num_prefill > 0
        build.step = self.step
        plan = build.plan(num_decode, [])
        build.admitted = []
        self.step += 1
        self.num_flights += 1
        self.c_steps += 1
        self.ring_at = (self.ring_at + 1) % (self.max_flights + 1)
        (<Build>self.ring[self.ring_at]).reset()
        return plan

    cdef int decode_rows(self, Build build) noexcept:
        """Writes one row for every running request that may decode; returns how many."""
        cdef int i, at, count = 0
        cdef Req* r
        for i in range(self.num_running):
            at = self.running[i]
            r = &self.R[at]
            if not self.ready(r):
                continue
            build.p_slots[count] = r.slot
            build.p_starts[count] = r.computed
            build.p_counts[count] = 1
            build.p_samples[count] = 1
            build.reqs[count] = at
            r.computed += 1
            r.flights += 1
            r.samples += 1
            count += 1
        build.num_rows = count
        build.num_sampled = count
        return count

    cdef inline bint ready(self, Req* r) noexcept:
        """Whether a decode row may run: its length is not reached and its page is there."""
        return (
            r.num_tokens + r.samples < r.max_total
            and r.computed == r.num_tokens + r.samples - 1
            and r.computed < r.num_pages * self.page_size
        )

    cdef int fill(self, Build build, int budget, double now) except -1:
        """Prefill chunks for what is left of the token budget: those begun first, then new ones."""
        cdef int i = 0, at
        while budget > 0:
            if i < self.num_filling:
                at = self.filling[i]
            else:
                if self.num_free_slots == 0:
                    return 0
                at = self.admit(now)
                if at < 0:
                    return 0
                self.filling[self.num_filling] = at
                self.num_filling += 1
            budget -= self.chunk_row(build, at, budget, now)
            if self.R[at].state == S_PREFILLED:
                self.num_filling = self.drop(self.filling, self.num_filling, at)
                self.running[self.num_running] = at
                self.num_running += 1
            else:
                i += 1
        return 0

    cdef int chunk_row(self, Build build, int at, int budget, double now) except -1:
        """One prefill row of at most `budget` tokens; returns how many it took."""
        cdef Req* r = &self.R[at]
        cdef int count = min(budget, r.num_tokens - r.computed)
        cdef int row = build.num_rows
        if not r.announced:
            r.announced = 1
            build.admitted.append(self.admission(at))
        build.p_slots[row] = r.slot
        build.p_starts[row] = r.computed
        build.p_counts[row] = count
        build.reqs[row] = at
        memcpy(build.p_prefill + build.num_prefill, r.tokens + r.computed, count * sizeof(int32_t))
        build.num_prefill += count
        build.num_rows += 1
        r.computed += count
        r.flights += 1
        if r.computed == r.num_tokens:
            build.p_samples[row] = 1
            build.num_sampled += 1
            r.samples += 1
            self.fire(r, E_LAST_CHUNK)
        else:
            build.p_samples[row] = 0
            self.fire(r, E_CHUNK)
        return count

    cdef object admission(self, int at):
        cdef Req* r = &self.R[at]
        cdef object history = self.prompts[at]
        if r.num_tokens > r.num_prompt:
            history = np.empty(r.num_tokens, np.int32)
            memcpy(cnp.PyArray_DATA(history), r.tokens, r.num_tokens * sizeof(int32_t))
        return Admission(r.slot, r.id, r.num_prompt, r.num_tokens, r.computed, history, self.payloads[at])

    # ---- admission

    cdef int admit(self, double now) except -2:
        """The next request to start, its slot and every page of its tokens reserved; -1 when none may."""
        cdef int at, passed, tries = 0
        if self.retr_head >= 0:
            at = self.retr_head
            return at if self.try_reserve(at, now) else -1
        at = self.wait_head
        while at >= 0 and tries <= self.window:
            passed = self.R[at].prev
            if self.try_reserve(at, now):
                while passed >= 0:
                    self.R[passed].passed += 1
                    passed = self.R[passed].prev
                return at
            if self.R[at].passed >= self.window:
                return -1
            at = self.R[at].next
            tries += 1
        return -1

    cdef bint try_reserve(self, int at, double now) except -1:
        """Matches the prefix and reserves the rest, or leaves everything as it was."""
        cdef Req* r = &self.R[at]
        cdef int total = (r.num_tokens + self.page_size - 1) // self.page_size
        cdef int limit = (r.num_tokens - 1) // self.page_size
        cdef int available = self.pool.num_free + self.index.evictable
        cdef int headroom = 0, matched = 0, device_run = 0, need, k, slot, page
        cdef int32_t* pages
        cdef int32_t* nodes
        if self.num_running or self.num_filling or self.leaving:
            # Room for the rows that run to grow, twice over for one that was already pushed out once.
            headroom = self.num_running + self.num_filling
            headroom += headroom if r.retractions else 0
        if r.need >= 0 and available < r.need + headroom and self.step - r.tried < RETRY_STEPS:
            return False
        if self.caching:
            self.extend_keys(r, limit)
            self.index.match(r.keys, r.tokens, limit, self.scratch, &device_run)
            matched = device_run
            for k in range(matched):
                self.index.ref(self.scratch[k])
        need = total - matched
        available = self.pool.num_free + self.index.evictable
        if available < need + headroom:
            for k in range(matched - 1, -1, -1):
                self.index.unref(self.scratch[k])
            r.need = need
            r.tried = self.step
            return False
        self.dequeue(at)
        self.num_free_slots -= 1
        slot = self.free_slots[self.num_free_slots]
        r.slot = slot
        self.fire(r, E_RESERVE)
        pages = self.table + <size_t>slot * self.max_pages
        nodes = self.nodes + <size_t>slot * self.max_pages
        for k in range(matched):
            nodes[k] = self.scratch[k]
            self.index.nodes[nodes[k]].hits += 1
            self.set_page(r, k, self.index.nodes[nodes[k]].dev)
        r.num_nodes = r.num_pages = matched
        for k in range(matched, total):
            page = self.take_page()
            if page < 0:
                raise SchedulerFault("a page that was counted is not there")
            self.set_page(r, k, page)
            r.num_pages = k + 1
        r.computed = r.landed = matched * self.page_size
        if r.is_retracted:
            r.is_retracted = 0
            r.retracted_s += now - r.retracted_at
        if r.started < 0:
            r.started = now
            r.cached = r.computed
            self.c_prompt += r.num_prompt
            self.c_cached += r.cached
        self.c_queries += r.num_tokens
        self.c_hit_device += r.computed
        return True

    cdef int expire(self, double now) except -1:
        """Ends every request whose deadline has passed."""
        cdef double soonest = float("inf")
        for at in list(self.by_id.values()):
            if self.R[<int>at].deadline <= now:
                self.end(at, E_ABORT, now, "deadline", "")
            elif self.R[<int>at].deadline < soonest:
                soonest = self.R[<int>at].deadline
        self.soonest = soonest
        return 0

    # ---- events

    def advance(self, event, double now):
        """Takes in a landed step (returns what it gave) or a finished copy (returns None)."""
        if isinstance(event, StepLanded):
            return self.step_landed(event.step, event.tokens, event.failed, now)
        if isinstance(event, MoveDone):
            raise SchedulerFault(f"no move {event.move_id} is on its way")
        raise TypeError(f"{type(event).__name__} is not an event of the scheduler")

    cdef object step_landed(self, int64_t step, object tokens, object failed, double now):
        cdef Build build
        cdef int i, at, count = 0, token
        cdef Req* r
        cdef cnp.ndarray array, out_ids, out_tokens, out_rows
        cdef int32_t* sampled
        cdef int64_t* ids
        cdef int32_t* emitted
        cdef int32_t* rows
        cdef cnp.npy_intp size
        cdef bint any_failed = len(failed) > 0
        if self.num_flights == 0:
            raise SchedulerFault(f"step {step} landed, none is in flight")
        build = <Build>self.ring[(self.ring_at - self.num_flights + self.max_flights + 1) % (self.max_flights + 1)]
        if build.step != step:
            raise SchedulerFault(f"step {step} landed, step {build.step} is the oldest in flight")
        array = np.ascontiguousarray(tokens, dtype=np.int32)
        if cnp.PyArray_SIZE(array) < build.num_rows:
            raise SchedulerFault(f"step {step} has {build.num_rows} rows and {cnp.PyArray_SIZE(array)} tokens")
        sampled = <int32_t*>cnp.PyArray_DATA(array)
        size = build.num_sampled
        out_ids = cnp.PyArray_SimpleNew(1, &size, cnp.NPY_INT64)
        out_tokens = cnp.PyArray_SimpleNew(1, &size, cnp.NPY_INT32)
        out_rows = cnp.PyArray_SimpleNew(1, &size, cnp.NPY_INT32)
        ids = <int64_t*>cnp.PyArray_DATA(out_ids)
        emitted = <int32_t*>cnp.PyArray_DATA(out_tokens)
        rows = <int32_t*>cnp.PyArray_DATA(out_rows)
        self.num_flights -= 1
        self.lift_fences(step)
        for i in range(build.num_rows):
            at = build.reqs[i]
            r = &self.R[at]
            r.flights -= 1
            r.samples -= build.p_samples[i]
            if r.state == S_DRAINING or r.state == S_ABORTING:
                self.c_dropped += build.p_samples[i]
                if r.flights == 0:
                    self.drained(at)
                continue
            if any_failed and i in failed:
                r.poisoned = 1
                self.c_errors += 1
                self.end(at, E_FINISH, now, "error", "the forward pass gave no usable result for this request")
                continue
            r.landed = build.p_starts[i] + build.p_counts[i]
            self.publish(r)
            if build.p_samples[i]:
                token = sampled[i]
                ids[count] = r.id
                emitted[count] = token
                rows[count] = i
                count += 1
                self.append(r, token)
                if r.state == S_PREFILLED:
                    self.fire(r, E_TOKEN)
                if r.first_token < 0:
                    r.first_token = now
                if self.stops(r, token):
                    r.stop_token = token
                    self.end(at, E_FINISH, now, "stop", "")
                    continue
                if r.num_tokens >= r.max_total:
                    self.end(at, E_FINISH, now, "length", "")
                    continue
            if r.state == S_RETRACTING and r.flights == 0:
                self.park(at)
        self.c_generated += count
        if count != size:
            return StepOutcome(step, out_ids[:count], out_tokens[:count], out_rows[:count])
        return StepOutcome(step, out_ids, out_tokens, out_rows)

    cdef int append(self, Req* r, int token) except -1:
        cdef int32_t* bigger
        cdef int size
        if r.num_tokens == r.cap_tokens:
            size = min(r.max_total, 2 * r.cap_tokens)
            bigger = <int32_t*>realloc(r.tokens, size * sizeof(int32_t))
            if bigger == NULL:
                raise MemoryError()
            r.tokens = bigger
            r.cap_tokens = size
        r.tokens[r.num_tokens] = token
        r.num_tokens += 1
        return 0

    cdef inline bint stops(self, Req* r, int token) noexcept:
        """A stop token ends the request unless that would leave it with fewer than min_tokens."""
        cdef int i
        if r.num_tokens < r.min_total:
            return False
        for i in range(r.num_stops):
            if r.stops[i] == token:
                return True
        return False

    def take_finished(self) -> list:
        """The terminal events since the last call, in order."""
        cdef list out = self.finished
        if out:
            self.finished = []
            return out
        return []

    def flush_cache(self) -> int:
        """Forgets every cached page nobody uses; returns how many pages that freed."""
        return self.index.flush()

    # ---- operators and tests

    @property
    def counters(self) -> dict:
        """Cumulative counts."""
        return {
            "steps": self.c_steps,
            "requests": self.c_submitted,
            "finished": self.c_finished,
            "prompt_tokens": self.c_prompt,
            "cached_tokens": self.c_cached,
            "generation_tokens": self.c_generated,
            "dropped_tokens": self.c_dropped,
            "retractions": self.c_retractions,
            "evictions": self.index.device_evictions,
            "host_evictions": self.index.host_evictions,
            "aborts": self.c_aborts,
            "refusals": self.c_refusals,
            "errors": self.c_errors,
            "hit_queries": self.c_queries,
            "hit_device": self.c_hit_device,
            "hit_host": self.c_hit_host,
            "hit_disk": self.c_hit_disk,
        }

    @property
    def num_running_requests(self) -> int:
        """Requests that hold a slot."""
        return self.max_slots - self.num_free_slots

    @property
    def num_waiting_requests(self) -> int:
        return self.num_waiting

    @property
    def num_retracted_requests(self) -> int:
        return self.num_retracted

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens of the waiting requests."""
        return self.waiting_tokens

    def state_of(self, request_id) -> str | None:
        """The state of a live request."""
        found = self.by_id.get(request_id)
        return None if found is None else STATE_LABELS[self.R[<int>found].state]

    def snapshot(self) -> dict:
        """What an operator sees of the control plane."""
        width, states = self.pool.bins()
        pages = self.pool.count()
        pages["total"] = self.pool.num_pages
        return {
            "running": self.num_running_requests,
            "waiting": self.num_waiting,
            "retracted": self.num_retracted,
            "prefetching": 0,
            "counters": self.counters,
            "tiers": {"device": pages, "host": None, "disk": None},
            "hits": {
                "queries": self.c_queries,
                "device": self.c_hit_device,
                "host": self.c_hit_host,
                "disk": self.c_hit_disk,
            },
            "page_map": {"bin_pages": width, "states": states},
        }

    def integrity(self) -> None:
        """Raises SchedulerFault (or the cache's own fault) unless every page and slot has exactly one owner."""
        cdef int32_t* owners = <int32_t*>calloc(self.pool.num_pages + 1, sizeof(int32_t))
        cdef int32_t* refs = <int32_t*>calloc(self.index.capacity + 1, sizeof(int32_t))
        cdef int32_t* slots = <int32_t*>calloc(self.max_slots + 1, sizeof(int32_t))
        cdef int i, k, live = 0, leaving = 0
        cdef size_t base
        cdef Req* r
        try:
            self.pool.integrity()
            self.index.integrity()
            for i in range(self.num_free_slots):
                slots[self.free_slots[i]] += 1
            for i in range(self.cap_reqs):
                r = &self.R[i]
                if r.tokens == NULL:
                    continue
                live += 1
                if r.state == S_DRAINING or r.state == S_ABORTING or r.state == S_RETRACTING:
                    leaving += 1
                if r.slot < 0:
                    if r.num_pages or r.num_nodes:
                        raise SchedulerFault(f"request {r.id} holds pages without a slot")
                    continue
                slots[r.slot] += 1
                base = <size_t>r.slot * self.max_pages
                for k in range(r.num_pages):
                    if k < r.num_nodes:
                        refs[self.nodes[base + k]] += 1
                        if self.index.nodes[self.nodes[base + k]].dev != self.table[base + k]:
                            raise SchedulerFault(f"request {r.id} page {k} is not its node's page")
                    else:
                        owners[self.table[base + k]] += 1
            for i in range(self.max_slots):
                if slots[i] != 1:
                    raise SchedulerFault(f"slot {i} has {slots[i]} owners")
            for i in range(self.fence_count):
                owners[self.fence_page[(self.fence_head + i) % self.fence_cap]] += 1
            for i in range(self.pool.num_free):
                owners[self.pool.stack[i]] += 1
            for i in range(self.index.capacity):
                if not self.index.nodes[i].used:
                    continue
                if refs[i] != self.index.nodes[i].refs:
                    raise SchedulerFault(f"node {i} has {refs[i]} users and counts {self.index.nodes[i].refs}")
                if self.index.nodes[i].dev >= 0:
                    owners[self.index.nodes[i].dev] += 1
            for i in range(self.pool.num_pages):
                if owners[i] != 1:
                    raise SchedulerFault(f"page {i} has {owners[i]} owners")
            if leaving != self.leaving:
                raise SchedulerFault(f"{leaving} requests are leaving, {self.leaving} counted")
            if live != self.cap_reqs - self.num_spare_reqs:
                raise SchedulerFault(f"{live} request records live, {self.cap_reqs - self.num_spare_reqs} counted")
        finally:
            free(owners)
            free(refs)
            free(slots)
