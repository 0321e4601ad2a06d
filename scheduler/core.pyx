"""The scheduler: which rows run, which pages they use, and what becomes of each request.

Owns requests, request slots, page ownership, the waiting queues and the plans in flight. Knows no tensors, no models,
and no clock but the `now` it is given.

A request's pages, in order:   [ nodes 0 .. num_nodes ) of the prefix index | private [ num_nodes .. num_pages )
A request's tokens, in order:  prompt | generated;  landed <= computed <= num_tokens + samples in flight - 1 (decode)
"""

cimport numpy as cnp
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memmove, memset

import numpy as np

from tsd.cache.hashing cimport PageHasher, tsd_key
from tsd.cache.index cimport Node, PrefixIndex
from tsd.cache.pool cimport PAGE_ACTIVE, PAGE_FENCED, PAGE_IN_FLIGHT, PagePool
from tsd.scheduler.plan cimport Build
from tsd.scheduler.transfer cimport Transfer

from tsd.cache.disk_map import DiskMap
from tsd.scheduler.journal import Journal
from tsd.scheduler.states import TRANSITIONS, Event, State
from tsd.scheduler.types import (
    Admission,
    FinishedRequest,
    Move,
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
    int32_t retractions
    int32_t cached
    int32_t need
    int32_t stop_token
    uint8_t announced
    uint8_t private_rest
    uint8_t poisoned
    uint8_t is_retracted
    uint8_t fetched
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


cdef class Audit:
    """Counters of one integrity check: owners of each page and slot, users of each node."""

    cdef int32_t* pages
    cdef int32_t* hosts
    cdef int32_t* refs
    cdef int32_t* pins
    cdef int32_t* slots

    def __cinit__(self, int pages, int hosts, int nodes, int slots):
        self.pages = <int32_t*>calloc(pages + 1, sizeof(int32_t))
        self.hosts = <int32_t*>calloc(hosts + 1, sizeof(int32_t))
        self.refs = <int32_t*>calloc(nodes + 1, sizeof(int32_t))
        self.pins = <int32_t*>calloc(nodes + 1, sizeof(int32_t))
        self.slots = <int32_t*>calloc(slots + 1, sizeof(int32_t))
        if self.pages == NULL or self.hosts == NULL or self.refs == NULL or self.pins == NULL or self.slots == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self.pages)
        free(self.hosts)
        free(self.refs)
        free(self.pins)
        free(self.slots)


cdef class Scheduler:
    """See the module. Not thread-safe: one loop drives it."""

    cdef readonly object config
    cdef int page_size, max_slots, max_pages, chunk, max_flights, window, retract_every
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
    cdef int fetching
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
    # tiers
    cdef object disk
    cdef int disk_threshold
    cdef dict transfers
    cdef list pending_moves
    cdef int64_t next_move
    cdef int device_moves
    cdef readonly object journal
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
        self.retract_every = config.debug_retract_every
        self.mixed = config.mixed_batch
        self.caching = config.prefix_cache
        self.pool = PagePool(config.num_pages)
        self.host = PagePool(config.host_pages if self.caching else 0)
        self.disk = DiskMap(config.disk_blocks if self.host.num_pages else 0)
        self.disk_threshold = config.disk_threshold_pages
        self.transfers = {}
        self.pending_moves = []
        self.journal = Journal()
        self.hasher = PageHasher(self.page_size, config.hash_secret, config.namespace)
        self.index = PrefixIndex(self.page_size, self.pool, self.host)
        self.index.record = config.kv_events
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
        except Refused as refusal:
            self.c_refusals += 1
            self.journal.event(now, "refusal", spec.request_id, refusal.code, refusal.message)
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
        r.min_total = min(<int64_t>2**31 - 1, length + spec.min_tokens)
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
        self.journal.note(now, r.id, "queued")

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
        elif before == S_PREFETCHING:
            if r.slot < 0:
                self.dequeue(at)
            else:
                self.fetching -= 1
        if r.is_retracted:
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
        kind = "error" if reason == "error" else "finish" if event == E_FINISH else "abort"
        self.journal.event(now, kind, r.id, reason, message)
        self.journal.close(now, r.id, reason)
        if r.deadline != float("inf"):
            self.num_deadlines -= 1
            if self.num_deadlines == 0:
                self.soonest = float("inf")
        if r.state == S_FINISHED:
            self.recycle(at)
            return 0
        self.leaving += 1
        if r.flights == 0 and r.moves == 0:
            self.drained(at)
        return 0

    cdef int drained(self, int at) except -1:
        """No launched step or copy reads a Draining or Aborting request any more."""
        cdef Req* r = &self.R[at]
        cdef Transfer transfer = None
        self.leaving -= 1
        if r.state == S_DRAINING:
            transfer = self.write_back(r)
        self.release(r)
        if transfer is None:
            self.fire(r, E_DRAINED)
            self.recycle(at)
        else:
            self.fire(r, E_WRITE_BACK)
            r.moves += 1
            transfer.req = at
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
            build.drop_deltas(r.slot)
        if r.announced:
            build.add_released(r.slot)
        self.free_slots[self.num_free_slots] = r.slot
        self.num_free_slots += 1
        r.slot = -1
        r.announced = 0
        return 0

    cdef int set_page(self, Req* r, int k, int page) except -1:
        """Logical page k of the request is now `page`; the next plan tells the executor."""
        self.table[<size_t>r.slot * self.max_pages + k] = page
        (<Build>self.ring[self.ring_at]).add_delta(r.slot, k, page)
        self.delta_step[r.slot] = self.step
        return 0

    cdef int take_page(self) except -2:
        """A device page for one owner, cleaned by the next plan when a failed row left it; -1 when there is none."""
        cdef int page = self.index.take_device()
        if page >= 0 and self.pool.dirty[page]:
            (<Build>self.ring[self.ring_at]).add_zero(page)
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
            if self.leaving or self.fence_count or self.device_moves:
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
        self.journal.event(now, "retraction", r.id, "pages", f"{r.num_pages} pages, {r.num_tokens} tokens")
        self.journal.note(now, r.id, "retracted")
        if r.flights == 0:
            self.park(at)
        return 0

    cdef int park(self, int at) except -1:
        """A retracted request whose launched steps have landed gives its pages up and queues again."""
        cdef Req* r = &self.R[at]
        self.leaving -= 1
        self.write_back(r)
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
        """Whether any request is live or draining, or any step or copy is on its way."""
        return bool(self.by_id) or self.leaving > 0 or self.num_flights > 0 or bool(self.transfers)

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
        if self.retract_every and self.step % self.retract_every == self.retract_every - 1:
            at = self.victim()
            if at >= 0:
                self.retract(at, now)
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
        moves = self.pending_moves
        if build.num_rows == 0 and not moves:
            return None
        if moves:
            self.pending_moves = []
        else:
            moves = []
        self.last_was_prefill = build.num_prefill > 0
        plan = build.finish(self.step, num_decode, moves)
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
                if self.R[at].state == S_PREFETCHING:
                    continue
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
        self.journal.note(now, r.id, "chunk", f"{r.computed}+{count}")
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
            if self.R[at].state == S_PREFETCHING:
                at = self.R[at].next
                continue
            if self.try_reserve(at, now):
                while passed >= 0:
                    self.R[passed].passed += 1
                    passed = self.R[passed].prev
                return at
            if self.R[at].passed >= self.window and self.R[at].state == S_SUBMITTED:
                return -1
            at = self.R[at].next
            tries += 1
        return -1

    cdef bint try_reserve(self, int at, double now) except -1:
        """Matches the prefix and reserves slot and pages for all tokens, or leaves everything as it was.

        True: the request is Bootstrapping, or Prefetching while its host pages are copied to the device.
        """
        cdef Req* r = &self.R[at]
        cdef int total = (r.num_tokens + self.page_size - 1) // self.page_size
        cdef int limit = (r.num_tokens - 1) // self.page_size
        cdef int available = self.pool.num_free + self.index.evictable
        cdef int headroom = 0, run = 0, device_run = 0, need, k
        if self.num_running or self.num_filling or self.fetching or self.leaving:
            # Room for the rows that run to grow, twice over for one that was already pushed out once.
            headroom = self.num_running + self.num_filling
            headroom += headroom if r.retractions else 0
        if r.need >= 0 and available < r.need + headroom and self.step - r.tried < RETRY_STEPS:
            return False
        if self.caching:
            self.extend_keys(r, limit)
            run = self.index.match(r.keys, r.tokens, limit, self.scratch, &device_run)
            for k in range(device_run, run):
                if self.index.nodes[self.scratch[k]].loading:
                    return False
            if self.disk.capacity and run < limit and not r.fetched and r.state == S_SUBMITTED:
                r.fetched = 1
                if self.prefetch(at, run, limit, now):
                    return False
            for k in range(run):
                self.index.ref(self.scratch[k])
            for k in range(device_run, run):
                self.index.pin(self.scratch[k])
        need = total - device_run
        available = self.pool.num_free + self.index.evictable
        if available < need + headroom:
            for k in range(run - 1, device_run - 1, -1):
                self.index.unpin(self.scratch[k])
            for k in range(run - 1, -1, -1):
                self.index.unref(self.scratch[k])
            r.need = need
            r.tried = self.step
            return False
        self.dequeue(at)
        self.reserve(at, run, device_run, total, now)
        if run > device_run:
            self.fire(r, E_FETCH)
            self.load_back(at, device_run)
            self.journal.note(now, r.id, "prefetch", f"{run - device_run} pages from the host tier")
        else:
            self.fire(r, E_RESERVE)
            self.begin(at, now)
        return True

    cdef int reserve(self, int at, int run, int device_run, int total, double now) except -1:
        """Takes the slot, writes the page table: matched pages, then fresh ones. The first `run` nodes are in scratch."""
        cdef Req* r = &self.R[at]
        cdef int32_t* nodes
        cdef int k, page
        self.num_free_slots -= 1
        r.slot = self.free_slots[self.num_free_slots]
        nodes = self.nodes + <size_t>r.slot * self.max_pages
        for k in range(run):
            nodes[k] = self.scratch[k]
            self.index.nodes[nodes[k]].hits += 1
        for k in range(device_run):
            self.set_page(r, k, self.index.nodes[nodes[k]].dev)
        for k in range(device_run, total):
            page = self.take_page()
            if page < 0:
                raise SchedulerFault("a page that was counted is not there")
            self.set_page(r, k, page)
        r.num_nodes = run
        r.num_pages = total
        r.computed = r.landed = device_run * self.page_size
        if r.is_retracted:
            r.is_retracted = 0
            r.retracted_s += now - r.retracted_at
            self.journal.note(now, r.id, "resumed")
        self.c_queries += r.num_tokens
        self.c_hit_device += r.computed
        return 0

    cdef int begin(self, int at, double now) except -1:
        """What is cached is in place: the request waits for token budget."""
        cdef Req* r = &self.R[at]
        if r.started < 0:
            r.started = now
            r.cached = r.computed
            self.c_prompt += r.num_prompt
            self.c_cached += r.cached
        return 0

    # ---- tiers

    cdef Transfer transfer(self, str kind, int size):
        """A new transfer; `ship` puts it into the next plan."""
        cdef Transfer found = Transfer(self.next_move, kind, size)
        self.next_move += 1
        return found

    cdef int ship(self, Transfer t, object sources, object targets) except -1:
        self.transfers[t.move_id] = t
        self.pending_moves.append(Move(t.move_id, t.kind, sources, targets, t.keys))
        return 0

    cdef bytes key_bytes(self, tsd_key* key):
        return PyBytes_FromStringAndSize(<char*>key, 16)

    cdef int load_back(self, int at, int device_run) except -1:
        """Copies the host pages [device_run, num_nodes) of a Prefetching request to the device pages it reserved."""
        cdef Req* r = &self.R[at]
        cdef int count = r.num_nodes - device_run
        cdef size_t base = <size_t>r.slot * self.max_pages + device_run
        cdef Transfer t = self.transfer("load_back", count)
        cdef int i, n
        sources = np.empty(count, np.int32)
        targets = np.empty(count, np.int32)
        t.req = at
        t.first = device_run
        t.count = count
        for i in range(count):
            n = self.nodes[base + i]
            t.nodes[i] = n
            t.pages[i] = self.table[base + i]
            self.index.nodes[n].loading = 1
            self.pool.state[t.pages[i]] = PAGE_IN_FLIGHT
            sources[i] = self.index.nodes[n].host
            targets[i] = t.pages[i]
            t.keys.append(self.index.key_of(n))
        r.moves += 1
        self.fetching += 1
        self.device_moves += 1
        self.ship(t, sources, targets)
        return 0

    cdef int loaded(self, Transfer t, bint ok, double now) except -1:
        """A load-back landed or failed; what failed is recomputed."""
        cdef Req* r = &self.R[t.req]
        cdef int i, k, n
        cdef Node* node
        self.device_moves -= 1
        r.moves -= 1
        for i in range(t.count):
            n = t.nodes[i]
            node = &self.index.nodes[n]
            node.loading = 0
            if not ok:
                self.pool.state[t.pages[i]] = PAGE_ACTIVE
                continue
            if node.dev < 0:
                self.index.adopt(n, t.pages[i])
            else:
                self.pool.give(t.pages[i])
                self.set_page(r, t.first + i, node.dev)
        for i in range(t.count - 1, -1, -1):
            self.index.unpin(t.nodes[i])
        if not ok:
            # The pages stay, as private ones to compute into; the host copies are not trusted again.
            r.num_nodes = t.first
            for i in range(t.count - 1, -1, -1):
                n = t.nodes[i]
                if self.index.nodes[n].dev >= 0 or self.index.nodes[n].refs > 1:
                    self.index.unref(n)
                    continue
                if self.index.nodes[n].pins == 0 and self.index.nodes[n].host >= 0:
                    self.index.drop_host(n)
                self.index.unref(n)
        if r.state == S_ABORTING:
            self.drained(t.req)
            return 0
        self.fetching -= 1
        self.fire(r, E_FETCHED)
        if ok:
            r.computed = r.landed = r.num_nodes * self.page_size
            self.c_hit_host += t.count * self.page_size
        self.begin(t.req, now)
        self.filling[self.num_filling] = t.req
        self.num_filling += 1
        return 0

    cdef Transfer write_back(self, Req* r):
        """Starts copying the request's indexed pages that the host tier lacks; the transfer takes its own references."""
        cdef size_t base = <size_t>r.slot * self.max_pages
        cdef int k, n, page, deepest = -1
        cdef Transfer t
        cdef Node* node
        cdef list sources = [], targets = []
        if self.host.num_pages == 0 or r.poisoned:
            return None
        for k in range(r.num_nodes):
            node = &self.index.nodes[self.nodes[base + k]]
            if node.host < 0 and not node.copying:
                deepest = k
        if deepest < 0:
            return None
        # The path's own host copies must not be what makes room for the rest of it.
        for k in range(r.num_nodes):
            if self.index.nodes[self.nodes[base + k]].host >= 0:
                self.index.pin(self.nodes[base + k])
        t = self.transfer("write_back", deepest + 1)
        for k in range(deepest + 1):
            n = self.nodes[base + k]
            node = &self.index.nodes[n]
            t.nodes[k] = n
            t.pages[k] = -1
            t.count = k + 1
            if node.host >= 0 or node.copying:
                continue
            page = self.index.take_host()
            if page < 0:
                break
            self.host.state[page] = PAGE_IN_FLIGHT
            t.pages[k] = page
            sources.append(node.dev)
            targets.append(page)
            t.keys.append(self.index.key_of(n))
        for k in range(r.num_nodes - 1, -1, -1):
            if self.index.nodes[self.nodes[base + k]].host >= 0:
                self.index.unpin(self.nodes[base + k])
        if not sources:
            return None
        # References on the whole path: a node never outlives its parent on the device.
        for k in range(t.count):
            if t.pages[k] >= 0:
                self.index.nodes[t.nodes[k]].copying = 1
            self.index.ref(t.nodes[k])
        self.device_moves += 1
        self.ship(t, np.array(sources, np.int32), np.array(targets, np.int32))
        return t

    cdef int written(self, Transfer t, bint ok) except -1:
        """A write-back landed or failed."""
        cdef int i, n
        cdef Node* node
        self.device_moves -= 1
        for i in range(t.count - 1, -1, -1):
            if t.pages[i] < 0:
                continue
            n = t.nodes[i]
            node = &self.index.nodes[n]
            node.copying = 0
            if ok and node.host < 0:
                self.index.set_host(n, t.pages[i])
            else:
                self.host.give(t.pages[i])
        if ok and self.disk.capacity:
            self.store(t)
        for i in range(t.count - 1, -1, -1):
            self.index.unref(t.nodes[i])
        if t.req >= 0:
            self.R[t.req].moves -= 1
            self.fire(&self.R[t.req], E_WRITTEN)
            self.recycle(t.req)
        return 0

    cdef int store(self, Transfer source) except -1:
        """Starts writing to disk the pages that just reached the host tier; discards what the disk has no room for."""
        cdef Transfer t = self.transfer("store", source.count)
        cdef Transfer gone
        cdef int i, n
        cdef list pages = [], discard = []
        for i in range(source.count):
            n = source.nodes[i]
            if source.pages[i] < 0 or self.index.nodes[n].host < 0:
                continue
            key = self.index.key_of(n)
            evicted = self.disk.reserve(key)
            if evicted is None:
                continue
            discard.extend(evicted)
            self.index.pin(n)
            t.nodes[t.count] = n
            t.count += 1
            t.keys.append(key)
            pages.append(self.index.nodes[n].host)
        if discard:
            gone = self.transfer("discard", 0)
            gone.keys = discard
            self.ship(gone, np.empty(0, np.int32), np.empty(0, np.int32))
        if t.count:
            self.ship(t, np.asarray(pages, np.int32), np.full(t.count, -1, np.int32))
        return 0

    cdef int stored(self, Transfer t, bint ok) except -1:
        cdef int i
        for i in range(t.count - 1, -1, -1):
            self.disk.stored(t.keys[i], ok)
            self.index.unpin(t.nodes[i])
        return 0

    cdef bint prefetch(self, int at, int run, int limit, double now) except -1:
        """Starts reading the pages from `run` on that the disk holds into host pages, when there are enough of them."""
        cdef Req* r = &self.R[at]
        cdef Transfer t
        cdef int k = run, page
        while k < limit and self.disk.readable(self.key_bytes(&r.keys[k])):
            k += 1
        if k - run < max(1, self.disk_threshold):
            return False
        t = self.transfer("prefetch", k - run)
        t.req = at
        t.first = run
        for k in range(run):
            if self.index.nodes[self.scratch[k]].host >= 0:
                self.index.pin(self.scratch[k])
        while t.first + t.count < limit:
            key = self.key_bytes(&r.keys[t.first + t.count])
            if not self.disk.readable(key):
                break
            page = self.index.take_host()
            if page < 0:
                break
            self.host.state[page] = PAGE_IN_FLIGHT
            t.pages[t.count] = page
            t.count += 1
            t.keys.append(key)
            self.disk.touch(key)
        for k in range(run - 1, -1, -1):
            if self.index.nodes[self.scratch[k]].host >= 0:
                self.index.unpin(self.scratch[k])
        if t.count == 0:
            return False
        targets = np.empty(t.count, np.int32)
        for k in range(t.count):
            targets[k] = t.pages[k]
        self.fire(r, E_FETCH)
        r.moves += 1
        self.ship(t, np.full(t.count, -1, np.int32), targets)
        self.journal.note(now, r.id, "prefetch", f"{t.count} pages from disk")
        return True

    cdef int prefetched(self, Transfer t, int good) except -1:
        """The first `good` pages of a prefetch are in the host tier; the rest was missing or rotten: a miss."""
        cdef Req* r = &self.R[t.req]
        cdef int i, k, n, parent
        for i in range(t.count):
            k = t.first + i
            if i >= good:
                self.disk.drop(t.keys[i])
                self.host.give(t.pages[i])
                continue
            n = self.index.find(r.keys[k], r.tokens + <size_t>k * self.page_size)
            if n < 0:
                parent = -1
                if k:
                    parent = self.index.find(r.keys[k - 1], r.tokens + <size_t>(k - 1) * self.page_size)
                if k == 0 or parent >= 0:
                    n = self.index.insert_host(parent, r.keys[k], r.tokens + <size_t>k * self.page_size, t.pages[i])
                    if n >= 0:
                        continue
            elif self.index.nodes[n].host < 0:
                self.index.set_host(n, t.pages[i])
                continue
            self.host.give(t.pages[i])
        self.c_hit_disk += good * self.page_size
        r.moves -= 1
        if r.state == S_ABORTING:
            self.drained(t.req)
        else:
            self.fire(r, E_REQUEUE)
        return 0

    cdef object move_done(self, object event, double now):
        cdef Transfer t = self.transfers.pop(event.move_id, None)
        cdef int good
        if t is None:
            raise SchedulerFault(f"no move {event.move_id} is on its way")
        if t.kind == "load_back":
            self.loaded(t, event.ok, now)
        elif t.kind == "write_back":
            self.written(t, event.ok)
        elif t.kind == "store":
            self.stored(t, event.ok)
        elif t.kind == "prefetch":
            good = event.good
            if good < 0:
                good = t.count if event.ok else 0
            self.prefetched(t, min(good, t.count))
        return None

    def adopt_disk(self, keys) -> int:
        """Tells which page keys the disk store already holds; returns how many were taken in."""
        return self.disk.adopt(keys)

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
            return self.move_done(event, now)
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
                    self.journal.note(now, r.id, "decode")
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
        """Forgets every cached page nobody uses, in every tier; returns how many device and host pages that freed."""
        cdef Transfer gone
        keys = self.disk.clear()
        if keys:
            gone = self.transfer("discard", 0)
            gone.keys = keys
            self.ship(gone, np.empty(0, np.int32), np.empty(0, np.int32))
        return self.index.flush()

    def take_kv_events(self) -> list:
        """(stored?, key, parent key or None, token ids as raw int32) since the last call, in order."""
        cdef list out = self.index.changes
        if out:
            self.index.changes = []
        return out

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
        pages = {"total": self.pool.num_pages, **self.pool.count()}
        host = {"total": self.host.num_pages, **self.host.count()} if self.host.num_pages else None
        disk = None
        if self.disk.capacity:
            disk = {
                "total": self.disk.capacity,
                "free": self.disk.capacity - len(self.disk),
                "cached": len(self.disk) - self.disk.storing,
                "in_flight": self.disk.storing,
            }
        return {
            "running": self.num_running_requests,
            "waiting": self.num_waiting,
            "retracted": self.num_retracted,
            "prefetching": 0,
            "counters": self.counters,
            "tiers": {"device": pages, "host": host, "disk": disk},
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
        cdef Audit audit = Audit(self.pool.num_pages, self.host.num_pages, self.index.capacity, self.max_slots)
        self.pool.integrity()
        self.host.integrity()
        self.index.integrity()
        self.audit_requests(audit)
        self.audit_transfers(audit)
        self.audit_pages(audit)

    cdef int audit_requests(self, Audit audit) except -1:
        """Slots, lists and what each request holds."""
        cdef int i, k, n, live = 0, leaving = 0, fetching = 0, running = 0, filling = 0, waiting = 0, retracted = 0
        cdef int64_t queued = 0
        cdef size_t base
        cdef Req* r
        for i in range(self.num_free_slots):
            audit.slots[self.free_slots[i]] += 1
        for i in range(self.cap_reqs):
            r = &self.R[i]
            if r.tokens == NULL:
                continue
            live += 1
            leaving += r.state == S_DRAINING or r.state == S_ABORTING or r.state == S_RETRACTING
            fetching += r.state == S_PREFETCHING and r.slot >= 0
            running += r.state == S_PREFILLED or r.state == S_DECODING
            filling += r.state == S_BOOTSTRAPPING or r.state == S_PREFILLING
            retracted += r.state == S_RETRACTED
            if r.state == S_SUBMITTED or (r.state == S_PREFETCHING and r.slot < 0):
                waiting += 1
                queued += r.num_prompt
            if r.slot < 0:
                if r.num_pages or r.num_nodes or r.flights:
                    raise SchedulerFault(f"request {r.id} holds pages or steps without a slot")
                continue
            audit.slots[r.slot] += 1
            base = <size_t>r.slot * self.max_pages
            for k in range(r.num_pages):
                n = self.nodes[base + k]
                if k >= r.num_nodes:
                    audit.pages[self.table[base + k]] += 1
                elif self.index.nodes[n].dev != self.table[base + k]:
                    if not self.index.nodes[n].loading:
                        raise SchedulerFault(f"request {r.id} page {k} is not its node's page")
                    audit.pages[self.table[base + k]] += 1
                if k < r.num_nodes:
                    audit.refs[n] += 1
        for i in range(self.max_slots):
            if audit.slots[i] != 1:
                raise SchedulerFault(f"slot {i} has {audit.slots[i]} owners")
        for text, found, counted in (
            ("leaving", leaving, self.leaving),
            ("fetching", fetching, self.fetching),
            ("running", running, self.num_running),
            ("filling", filling, self.num_filling),
            ("waiting", waiting, self.num_waiting),
            ("retracted", retracted, self.num_retracted),
            ("queued tokens", queued, self.waiting_tokens),
            ("live", live, self.cap_reqs - self.num_spare_reqs),
        ):
            if found != counted:
                raise SchedulerFault(f"{text}: {found} found, {counted} counted")
        return 0

    cdef int audit_transfers(self, Audit audit) except -1:
        """What the copies on their way hold."""
        cdef Transfer t
        cdef int i
        for t in self.transfers.values():
            for i in range(t.count):
                if t.kind == "write_back":
                    audit.refs[t.nodes[i]] += 1
                    if t.pages[i] >= 0:
                        audit.hosts[t.pages[i]] += 1
                elif t.kind == "prefetch":
                    audit.hosts[t.pages[i]] += 1
                elif t.kind == "load_back" or t.kind == "store":
                    audit.pins[t.nodes[i]] += 1
        return 0

    cdef int audit_pages(self, Audit audit) except -1:
        """One owner a page, in both tiers; references and pins as counted."""
        cdef int i
        cdef Node* node
        for i in range(self.fence_count):
            audit.pages[self.fence_page[(self.fence_head + i) % self.fence_cap]] += 1
        for i in range(self.pool.num_free):
            audit.pages[self.pool.stack[i]] += 1
        for i in range(self.host.num_free):
            audit.hosts[self.host.stack[i]] += 1
        for i in range(self.index.capacity):
            node = &self.index.nodes[i]
            if not node.used:
                continue
            if audit.refs[i] != node.refs or audit.pins[i] != node.pins:
                raise SchedulerFault(
                    f"node {i} has {audit.refs[i]} users and {audit.pins[i]} copies, counts {node.refs} and {node.pins}"
                )
            if node.dev >= 0:
                audit.pages[node.dev] += 1
            if node.host >= 0:
                audit.hosts[node.host] += 1
        for i in range(self.pool.num_pages):
            if audit.pages[i] != 1:
                raise SchedulerFault(f"device page {i} has {audit.pages[i]} owners")
        for i in range(self.host.num_pages):
            if audit.hosts[i] != 1:
                raise SchedulerFault(f"host page {i} has {audit.hosts[i]} owners")
        return 0
