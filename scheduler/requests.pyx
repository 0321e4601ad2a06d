"""The records of live requests, their states, and the two queues they wait in.

Owns token histories, page keys and arrival order. Knows nothing about pages, slots or steps: what a state holds is the
scheduler's business, which changes it through `fire` alone.
"""

cimport numpy as cnp
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from tsd.cache.hashing cimport PageHasher, tsd_key

from tsd.scheduler.states import TRANSITIONS, Event, State

cnp.import_array()

cdef enum:
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


cdef class Requests:
    """Records are reused; an index into them stays valid from `open` to `recycle`. No hasher: no page keys."""

    def __cinit__(self, int size, int page_size, PageHasher hasher=None):
        self.page_size = page_size
        self.hasher = hasher
        self.payloads = []
        self.prompts = []
        self.wait_head = self.wait_tail = self.retr_head = self.retr_tail = -1
        self.grow(size)

    def __dealloc__(self):
        cdef int i
        for i in range(self.capacity):
            free(self.R[i].tokens)
            free(self.R[i].keys)
            free(self.R[i].stops)
        free(self.R)
        free(self.spare)

    cdef int grow(self, int size) except -1:
        cdef Req* bigger = <Req*>realloc(self.R, size * sizeof(Req))
        cdef int32_t* spare
        cdef int i
        if bigger == NULL:
            raise MemoryError()
        self.R = bigger
        spare = <int32_t*>realloc(self.spare, size * sizeof(int32_t))
        if spare == NULL:
            raise MemoryError()
        self.spare = spare
        memset(&self.R[self.capacity], 0, (size - self.capacity) * sizeof(Req))
        for i in range(size - 1, self.capacity - 1, -1):
            self.R[i].state = S_FINISHED
            self.spare[self.num_spare] = i
            self.num_spare += 1
        self.payloads.extend([None] * (size - self.capacity))
        self.prompts.extend([None] * (size - self.capacity))
        self.capacity = size
        return 0

    cdef int open(self, object spec, object prompt, int64_t longest, double now) except -1:
        """A Submitted record for a request of at most `longest` tokens in all; not queued yet. Returns its index."""
        cdef int at
        if self.num_spare == 0:
            self.grow(self.capacity * 2)
        self.num_spare -= 1
        at = self.spare[self.num_spare]
        memset(&self.R[at], 0, sizeof(Req))
        try:
            self.fill_in(&self.R[at], spec, prompt, longest, now)
        except BaseException:
            # A field out of range, or no memory: the record goes back whole.
            self.recycle(at)
            raise
        self.payloads[at] = spec.payload
        self.prompts[at] = prompt
        return at

    cdef int fill_in(self, Req* r, object spec, object prompt, int64_t longest, double now) except -1:
        cdef int64_t length = cnp.PyArray_SIZE(prompt)
        cdef int i
        r.id = spec.request_id
        r.seq = self.next_seq
        self.next_seq += 1
        r.state = S_SUBMITTED
        r.slot = -1
        r.stop_token = -1
        r.load = -1
        r.cached = -1
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
        r.started = r.first_token = r.blocked = -1.0
        r.need = -1
        r.tried = -1000
        r.deadline = float("inf") if spec.deadline is None else spec.deadline
        if self.hasher is not None:
            r.root = self.hasher.root(spec.salt)
            self.extend_keys(r, length // self.page_size)
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
        self.spare[self.num_spare] = at
        self.num_spare += 1
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

    cdef bint stops(self, Req* r, int token) noexcept:
        """A stop token ends the request unless that would leave it with fewer than min_tokens."""
        cdef int i
        if r.num_tokens < r.min_total:
            return False
        for i in range(r.num_stops):
            if r.stops[i] == token:
                return True
        return False

    # ---- the queues, linked through prev and next

    cdef void link(self, int at, int after, int32_t* head, int32_t* tail) noexcept:
        """Puts a record behind `after` (-1: at the head)."""
        cdef Req* r = &self.R[at]
        r.prev = after
        if after >= 0:
            r.next = self.R[after].next
            self.R[after].next = at
        else:
            r.next = head[0]
            head[0] = at
        if r.next >= 0:
            self.R[r.next].prev = at
        else:
            tail[0] = at

    cdef void enqueue(self, int at, double ageing) noexcept:
        """Into the waiting queue: by priority, then arrival; nobody is passed for ever.

        Each `ageing` seconds that a request has waited count as one level of priority.
        """
        cdef Req* r = &self.R[at]
        cdef Req* other
        cdef int after = self.wait_tail
        while after >= 0:
            other = &self.R[after]
            if other.priority <= r.priority or other.outranked >= PRIORITY_PASSES:
                break
            if r.arrival - other.arrival >= (<double>other.priority - r.priority) * ageing:
                break
            other.outranked += 1
            after = other.prev
        self.link(at, after, &self.wait_head, &self.wait_tail)
        self.num_waiting += 1
        self.waiting_tokens += r.num_prompt

    cdef void enqueue_retracted(self, int at) noexcept:
        """Into the retracted queue, oldest arrival first."""
        cdef Req* r = &self.R[at]
        cdef int after = self.retr_tail
        r.is_retracted = 1
        while after >= 0 and self.R[after].seq > r.seq:
            after = self.R[after].prev
        self.link(at, after, &self.retr_head, &self.retr_tail)
        self.num_retracted += 1

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
