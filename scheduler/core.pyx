"""The scheduler: which rows run, which pages they use, and what becomes of each request.

Owns requests, request slots, page ownership, the waiting queues and the plans in flight. Knows no tensors, no models,
and no clock but the `now` it is given.

A request's pages, in order:   [ nodes 0 .. num_nodes ) of the prefix index | private [ num_nodes .. num_pages )
A request's tokens, in order:  prompt | generated;  landed <= computed <= num_tokens + samples in flight - 1 (decode)
"""

cimport numpy as cnp
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memmove

import numpy as np

from tsd.cache.fence cimport Fence
from tsd.cache.hashing cimport PageHasher
from tsd.cache.index cimport PrefixIndex
from tsd.cache.pool cimport PagePool
from tsd.scheduler.plan cimport Build
from tsd.scheduler.requests cimport (
    E_ABORT,
    E_CHUNK,
    E_DRAINED,
    E_FETCH,
    E_FETCHED,
    E_FINISH,
    E_LAST_CHUNK,
    E_REQUEUE,
    E_RESERVE,
    E_RETRACT,
    E_TOKEN,
    E_WRITE_BACK,
    E_WRITTEN,
    S_ABORTING,
    S_BOOTSTRAPPING,
    S_DECODING,
    S_DRAINING,
    S_FINISHED,
    S_PREFETCHING,
    S_PREFILLED,
    S_PREFILLING,
    S_RETRACTED,
    S_RETRACTING,
    S_SUBMITTED,
    Req,
    Requests,
)
from tsd.scheduler.tiers cimport Tiers
from tsd.scheduler.transfer cimport Transfer

from tsd.scheduler.journal import Journal
from tsd.scheduler.requests import STATE_LABELS, IllegalTransition
from tsd.scheduler.types import Admission, FinishedRequest, MoveDone, Refused, StepLanded, StepOutcome

cnp.import_array()

cdef enum:
    RETRY_STEPS = 8
    EVENT_INTERVAL_S = 1


class SchedulerFault(RuntimeError):
    """The scheduler contradicts itself, or was driven wrongly (a step landed out of order)."""


cdef class Scheduler:
    """See the module. Not thread-safe: one loop drives it."""

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
        self.sharing = config.share_in_flight
        self.pool = PagePool(config.num_pages)
        self.host = PagePool(config.host_pages if self.caching else 0)
        self.journal = Journal()
        self.hasher = PageHasher(self.page_size, config.hash_secret, config.namespace)
        self.index = PrefixIndex(self.page_size, self.pool, self.host)
        self.index.record = config.kv_events
        self.fence = Fence(self.pool)
        self.tiers = Tiers(self.index, config.disk_blocks, config.disk_threshold_pages)
        self.requests = Requests(max(64, 2 * self.max_slots), self.page_size, self.hasher if self.caching else None)
        self.by_id = {}
        self.finished = []
        self.free_slots = <int32_t*>calloc(self.max_slots, sizeof(int32_t))
        self.table = <int32_t*>calloc(<size_t>self.max_slots * self.max_pages, sizeof(int32_t))
        self.nodes = <int32_t*>calloc(<size_t>self.max_slots * self.max_pages, sizeof(int32_t))
        self.delta_step = <int64_t*>calloc(self.max_slots, sizeof(int64_t))
        self.scratch = <int32_t*>calloc(self.max_pages + 1, sizeof(int32_t))
        self.running = <int32_t*>calloc(self.max_slots, sizeof(int32_t))
        self.filling = <int32_t*>calloc(self.max_slots, sizeof(int32_t))
        if (
            self.free_slots == NULL or self.table == NULL or self.nodes == NULL or self.delta_step == NULL
            or self.scratch == NULL or self.running == NULL or self.filling == NULL
        ):
            raise MemoryError()
        for i in range(self.max_slots):
            self.free_slots[i] = self.max_slots - 1 - i
            self.delta_step[i] = -1
        self.num_free_slots = self.max_slots
        self.soonest = float("inf")
        self.ring = [Build(self.max_slots, self.chunk) for _ in range(self.max_flights + 1)]

    def __dealloc__(self):
        free(self.free_slots)
        free(self.table)
        free(self.nodes)
        free(self.delta_step)
        free(self.scratch)
        free(self.running)
        free(self.filling)

    # ---- requests

    def submit(self, spec, double now) -> None:
        """Queues a request. Raises Refused when it can never run, or when the queue is full."""
        prompt = np.ascontiguousarray(spec.prompt, dtype=np.int32)
        cdef int64_t length = prompt.shape[0]
        cdef int64_t pool_tokens = <int64_t>self.pool.num_pages * self.page_size
        cdef int64_t longest = min(<int64_t>self.config.max_model_len, pool_tokens)
        cdef int at
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
            if self.requests.num_waiting >= self.config.max_queued_requests:
                raise Refused("queue_full", f"{self.requests.num_waiting} requests are waiting")
            if self.requests.num_waiting and self.requests.waiting_tokens + length > self.config.max_queued_tokens:
                raise Refused("queue_full", f"{self.requests.waiting_tokens} prompt tokens are waiting")
        except Refused as refusal:
            self.c_refusals += 1
            self.journal.event(now, "refusal", spec.request_id, refusal.code, refusal.message)
            raise
        at = self.requests.open(spec, prompt, longest, now)
        r = &self.requests.R[at]
        self.soonest = min(self.soonest, r.deadline)
        self.by_id[spec.request_id] = at
        self.requests.enqueue(at)
        self.c_submitted += 1
        self.journal.note(now, r.id, "queued")

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
        cdef Req* r = &self.requests.R[at]
        cdef int before = r.state
        self.requests.fire(r, event)
        if before == S_SUBMITTED or before == S_RETRACTED:
            self.requests.dequeue(at)
        elif before == S_BOOTSTRAPPING or before == S_PREFILLING:
            self.num_filling = self.drop(self.filling, self.num_filling, at)
        elif before == S_PREFILLED or before == S_DECODING:
            self.num_running = self.drop(self.running, self.num_running, at)
        elif before == S_RETRACTING:
            self.leaving -= 1
        elif before == S_PREFETCHING:
            if r.slot < 0:
                self.requests.dequeue(at)
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
                self.requests.payloads[at],
            )
        )
        self.requests.payloads[at] = None
        del self.by_id[r.id]
        self.c_finished += 1
        kind = "error" if reason == "error" else "finish" if event == E_FINISH else "abort"
        self.journal.event(now, kind, r.id, reason, message)
        self.journal.close(now, r.id, reason)
        if r.state == S_FINISHED:
            self.requests.recycle(at)
            return 0
        self.leaving += 1
        if r.flights == 0 and r.moves == 0:
            self.drained(at)
        return 0

    cdef int drained(self, int at) except -1:
        """No launched step or copy reads a Draining or Aborting request any more.

        What an aborted one computed is kept too, but nothing of it waits for the copy.
        """
        cdef Req* r = &self.requests.R[at]
        cdef Transfer transfer
        cdef bint draining
        self.leaving -= 1
        transfer = self.keep(r)
        draining = r.state == S_DRAINING
        self.release(r)
        if transfer is None or not draining:
            self.requests.fire(r, E_DRAINED)
            self.requests.recycle(at)
        else:
            self.requests.fire(r, E_WRITE_BACK)
            r.moves += 1
            transfer.req = at
        return 0

    cdef Transfer keep(self, Req* r):
        """Starts the copy of the request's indexed pages to the host tier; None when there is nothing to copy."""
        if r.poisoned or r.num_nodes == 0:
            return None
        return self.tiers.write_back(self.nodes + <size_t>r.slot * self.max_pages, r.num_nodes)

    cdef int drop(self, int32_t* array, int size, int at) except -1:
        """Removes `at`, keeping the order; returns the new size."""
        cdef int i
        for i in range(size):
            if array[i] == at:
                memmove(array + i, array + i + 1, (size - i - 1) * sizeof(int32_t))
                return size - 1
        raise SchedulerFault(f"request {self.requests.R[at].id} is missing from its list")

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

    cdef int publish(self, Req* r) except -1:
        """Indexes the pages whose KV has landed. A page that someone indexed first is used instead of our copy."""
        cdef int full = r.landed // self.page_size
        cdef size_t base = <size_t>r.slot * self.max_pages
        cdef int k, n, page
        cdef int32_t* tokens
        if not self.caching or r.private_rest or r.num_nodes >= full:
            return 0
        self.requests.extend_keys(r, full)
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
                    if self.num_flights:
                        self.fence.add(page, self.step - 1)
                    else:
                        self.pool.give(page)
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
            if self.leaving or self.fence.count or self.tiers.device_moves:
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
            if latest < 0 or self.requests.R[at].seq > self.requests.R[latest].seq:
                latest = at
            if oldest < 0 or self.requests.R[at].seq < self.requests.R[oldest].seq:
                oldest = at
        return latest if latest != oldest else -1

    cdef int retract(self, int at, double now) except -1:
        cdef Req* r = &self.requests.R[at]
        cdef int before = r.state
        self.requests.fire(r, E_RETRACT)
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
        cdef Req* r = &self.requests.R[at]
        self.leaving -= 1
        self.keep(r)
        self.release(r)
        self.requests.fire(r, E_DRAINED)
        r.computed = r.landed = 0
        r.private_rest = 0
        r.need = -1
        r.tried = -1000
        self.requests.enqueue_retracted(at)
        return 0

    # ---- the plan

    @property
    def in_flight(self) -> int:
        """Plans handed out and not landed."""
        return self.num_flights

    @property
    def has_work(self) -> bool:
        """Whether any request is live or draining, or any step or copy is on its way."""
        return bool(self.by_id) or self.leaving > 0 or self.num_flights > 0 or bool(self.tiers.transfers)

    def next_plan(self, double now):
        """The next step, or None when nothing can run or max_in_flight plans are out."""
        cdef Build build
        cdef int i, at, num_decode = 0, page
        cdef Req* r
        if now >= self.soonest:
            self.expire(now)
        if self.num_flights >= self.max_flights:
            return None
        build = <Build>self.ring[self.ring_at]
        if self.retract_every and self.step % self.retract_every == self.retract_every - 1:
            at = self.victim()
            if at >= 0:
                self.retract(at, now)
        # Pages first: a victim must not be in the batch already.
        i = 0
        while i < self.num_running:
            at = self.running[i]
            r = &self.requests.R[at]
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
        moves = self.tiers.pending
        if build.num_rows == 0 and not moves:
            return None
        if moves:
            self.tiers.pending = []
        else:
            moves = []
        self.last_was_prefill = build.num_prefill > 0
        plan = build.finish(self.step, num_decode, moves)
        if self.index.device_evictions > self.told_evictions and now - self.told_at >= EVENT_INTERVAL_S:
            self.tell_evictions(now)
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
            r = &self.requests.R[at]
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

    cdef bint ready(self, Req* r) noexcept:
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
                if self.requests.R[at].state == S_PREFETCHING:
                    continue
                self.filling[self.num_filling] = at
                self.num_filling += 1
            budget -= self.chunk_row(build, at, budget, now)
            if self.requests.R[at].state == S_PREFILLED:
                self.num_filling = self.drop(self.filling, self.num_filling, at)
                self.running[self.num_running] = at
                self.num_running += 1
            else:
                i += 1
        return 0

    cdef int chunk_row(self, Build build, int at, int budget, double now) except -1:
        """One prefill row of at most `budget` tokens; returns how many it took."""
        cdef Req* r = &self.requests.R[at]
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
            self.requests.fire(r, E_LAST_CHUNK)
        else:
            build.p_samples[row] = 0
            self.requests.fire(r, E_CHUNK)
        return count

    cdef object admission(self, int at):
        cdef Req* r = &self.requests.R[at]
        cdef object history = self.requests.prompts[at]
        if r.num_tokens > r.num_prompt:
            history = np.empty(r.num_tokens, np.int32)
            memcpy(cnp.PyArray_DATA(history), r.tokens, r.num_tokens * sizeof(int32_t))
        return Admission(r.slot, r.id, r.num_prompt, r.num_tokens, r.computed, history, self.requests.payloads[at])

    # ---- admission

    cdef int admit(self, double now) except -2:
        """The next request to start, its slot and every page of its tokens reserved; -1 when none may."""
        cdef int at, passed, tries = 0
        if self.requests.retr_head >= 0:
            at = self.requests.retr_head
            return at if self.try_reserve(at, now) else -1
        at = self.requests.wait_head
        while at >= 0 and tries <= self.window:
            passed = self.requests.R[at].prev
            if self.requests.R[at].state == S_PREFETCHING:
                at = self.requests.R[at].next
                continue
            if self.try_reserve(at, now):
                while passed >= 0:
                    self.requests.R[passed].passed += 1
                    passed = self.requests.R[passed].prev
                return at
            if self.requests.R[at].passed >= self.window and self.requests.R[at].state == S_SUBMITTED:
                return -1
            at = self.requests.R[at].next
            tries += 1
        return -1

    cdef bint soon_shared(self, int at, int run, int limit) noexcept:
        """Whether a running prefill is computing the pages this request misses from `run` on, and enough of them.

        Enough: half of what it would have to compute, or 512 tokens.
        """
        cdef Req* r = &self.requests.R[at]
        cdef Req* other
        cdef Build build
        cdef int i, k, flight, row, slot
        for flight in range(self.num_flights + 1):
            # The oldest flights first; the last turn looks at those that have chunks left to launch.
            if flight < self.num_flights:
                slot = (self.ring_at - self.num_flights + flight + self.max_flights + 1) % (self.max_flights + 1)
                build = <Build>self.ring[slot]
                row = build.num_rows - build.num_decode
            else:
                build = None
                row = self.num_filling
            for i in range(row):
                k = self.filling[i] if build is None else build.reqs[build.num_decode + i]
                other = &self.requests.R[k]
                if other.num_nodes > run or other.num_keys <= run or other.slot < 0 or other.private_rest:
                    continue
                if other.state != S_PREFILLING and other.state != S_PREFILLED and other.state != S_BOOTSTRAPPING:
                    continue
                k = run
                while k < limit and k < other.num_keys and other.keys[k].lo == r.keys[k].lo:
                    k += 1
                k = (k - run) * self.page_size
                if k > 0 and (2 * k >= r.num_tokens - run * self.page_size or k >= 512):
                    return True
        return False

    cdef bint try_reserve(self, int at, double now) except -1:
        """Matches the prefix and reserves slot and pages for all tokens, or leaves everything as it was.

        True: the request is Bootstrapping, or Prefetching while its host pages are copied to the device.
        """
        cdef Req* r = &self.requests.R[at]
        cdef int total = (r.num_tokens + self.page_size - 1) // self.page_size
        cdef int limit = (r.num_tokens - 1) // self.page_size
        cdef int available = self.pool.num_free + self.index.evictable
        cdef int headroom = 0, run = 0, device_run = 0, need, k
        cdef size_t base
        if self.num_running or self.num_filling or self.fetching or self.leaving:
            # Room for the rows that run to grow, twice over for one that was already pushed out once.
            headroom = self.num_running + self.num_filling
            headroom += headroom if r.retractions else 0
        if r.need >= 0 and available < r.need + headroom and self.step - r.tried < RETRY_STEPS:
            return False
        if self.caching:
            self.requests.extend_keys(r, limit)
            run = self.index.match(r.keys, r.tokens, limit, self.scratch, &device_run)
            for k in range(device_run, run):
                if self.index.nodes[self.scratch[k]].loading:
                    return False
            if self.sharing and run < limit and not r.is_retracted and self.soon_shared(at, run, limit):
                return False
            if self.tiers.disk.capacity and run < limit and not r.fetched and r.state == S_SUBMITTED:
                r.fetched = 1
                need = self.tiers.prefetch(at, r.keys, self.scratch, run, limit)
                if need:
                    self.requests.fire(r, E_FETCH)
                    r.moves += 1
                    self.journal.note(now, r.id, "prefetch", f"{need} pages from disk")
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
        self.requests.dequeue(at)
        self.reserve(at, run, device_run, total, now)
        if run > device_run:
            self.requests.fire(r, E_FETCH)
            base = <size_t>r.slot * self.max_pages
            self.tiers.load_back(at, self.nodes + base, self.table + base, device_run, run - device_run)
            r.moves += 1
            self.fetching += 1
            self.journal.note(now, r.id, "prefetch", f"{run - device_run} pages from the host tier")
        else:
            self.requests.fire(r, E_RESERVE)
            self.begin(at, now)
        return True

    cdef int reserve(self, int at, int run, int device_run, int total, double now) except -1:
        """Takes the slot, writes the page table: matched pages, then fresh ones. The first `run` nodes are in scratch."""
        cdef Req* r = &self.requests.R[at]
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
        cdef Req* r = &self.requests.R[at]
        if r.started < 0:
            r.started = now
            r.cached = r.computed
            self.c_prompt += r.num_prompt
            self.c_cached += r.cached
        return 0

    # ---- tiers

    cdef int move_done(self, object event, double now) except -1:
        cdef Transfer t = self.tiers.transfers.pop(event.move_id, None)
        cdef Req* r
        cdef int good = event.good
        if t is None:
            raise SchedulerFault(f"no move {event.move_id} is on its way")
        if t.kind == "store":
            return self.tiers.stored(t, event.ok)
        if t.kind == "write_back":
            self.tiers.written(t, event.ok)
        elif t.kind == "load_back":
            self.loaded(t, event.ok, now)
        elif t.kind == "prefetch":
            r = &self.requests.R[t.req]
            if good < 0:
                good = t.count if event.ok else 0
            self.tiers.prefetched(t, r.keys, r.tokens, min(good, t.count))
            self.c_hit_disk += min(good, t.count) * self.page_size
        if t.req < 0 or t.kind == "load_back":
            return 0
        r = &self.requests.R[t.req]
        r.moves -= 1
        if r.state == S_ABORTING:
            self.drained(t.req)
        elif t.kind == "prefetch":
            self.requests.fire(r, E_REQUEUE)
        else:
            self.requests.fire(r, E_WRITTEN)
            self.requests.recycle(t.req)
        return 0

    cdef int loaded(self, Transfer t, bint ok, double now) except -1:
        """A Prefetching request's host pages are on the device; after a failure they are recomputed."""
        cdef Req* r = &self.requests.R[t.req]
        cdef size_t base = <size_t>r.slot * self.max_pages
        cdef int k, page
        self.tiers.loaded(t, ok)
        r.moves -= 1
        if ok:
            for k in range(t.first, t.first + t.count):
                page = self.index.nodes[self.nodes[base + k]].dev
                if page != self.table[base + k]:
                    self.set_page(r, k, page)
        else:
            r.num_nodes = t.first
        if r.state == S_ABORTING:
            return self.drained(t.req)
        self.fetching -= 1
        self.requests.fire(r, E_FETCHED)
        if ok:
            r.computed = r.landed = r.num_nodes * self.page_size
            self.c_hit_host += t.count * self.page_size
        self.begin(t.req, now)
        self.filling[self.num_filling] = t.req
        self.num_filling += 1
        return 0

    def adopt_disk(self, keys) -> int:
        """Tells which page keys the disk store already holds; returns how many were taken in."""
        return self.tiers.disk.adopt(keys)

    cdef int expire(self, double now) except -1:
        """Ends every request whose deadline has passed."""
        cdef double soonest = float("inf")
        for at in list(self.by_id.values()):
            if self.requests.R[<int>at].deadline <= now:
                self.end(at, E_ABORT, now, "deadline", "")
            elif self.requests.R[<int>at].deadline < soonest:
                soonest = self.requests.R[<int>at].deadline
        self.soonest = soonest
        return 0

    # ---- events

    def advance(self, event, double now):
        """Takes in a landed step (returns what it gave) or a finished copy (returns None)."""
        if isinstance(event, StepLanded):
            return self.step_landed(event.step, event.tokens, event.failed, now)
        if isinstance(event, MoveDone):
            self.move_done(event, now)
            return None
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
        self.fence.lift(step)
        for i in range(build.num_rows):
            at = build.reqs[i]
            r = &self.requests.R[at]
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
                self.requests.append(r, token)
                if r.state == S_PREFILLED:
                    self.requests.fire(r, E_TOKEN)
                if r.first_token < 0:
                    r.first_token = now
                    self.journal.note(now, r.id, "decode")
                if self.requests.stops(r, token):
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

    def take_finished(self) -> list:
        """The terminal events since the last call, in order."""
        cdef list out = self.finished
        if out:
            self.finished = []
            return out
        return []

    def flush_cache(self) -> int:
        """Forgets every cached page nobody uses, in every tier; returns how many device and host pages that freed."""
        self.tiers.discard(self.tiers.disk.clear())
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
        return self.requests.num_waiting

    @property
    def num_retracted_requests(self) -> int:
        return self.requests.num_retracted

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens of the waiting requests."""
        return self.requests.waiting_tokens

    def state_of(self, request_id) -> str | None:
        """The state of a live request."""
        found = self.by_id.get(request_id)
        return None if found is None else STATE_LABELS[self.requests.R[<int>found].state]

    cdef int tell_evictions(self, double now) except -1:
        """One event for all evictions since the last one."""
        cdef int64_t count = self.index.device_evictions - self.told_evictions
        self.journal.event(now, "eviction", -1, "pages", f"{count} cached pages given up for new ones")
        self.told_evictions = self.index.device_evictions
        self.told_at = now
        return 0

    def snapshot(self) -> dict:
        """Counts and states of the control plane, in under 2 ms for a million pages; single requests are `view`'s."""
        width, states = self.pool.bins()
        pages = {"total": self.pool.num_pages, **self.pool.count()}
        host = {"total": self.host.num_pages, **self.host.count()} if self.host.num_pages else None
        disk = None
        if self.tiers.disk.capacity:
            disk = {
                "total": self.tiers.disk.capacity,
                "free": self.tiers.disk.capacity - len(self.tiers.disk),
                "cached": len(self.tiers.disk) - self.tiers.disk.storing,
                "in_flight": self.tiers.disk.storing,
            }
        return {
            "step": self.step,
            "page_size": self.page_size,
            "running": self.num_running_requests,
            "waiting": self.requests.num_waiting,
            "retracted": self.requests.num_retracted,
            "prefetching": self.fetching,
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

    def debug_retract(self, int every) -> None:
        """Tests: from now on retract the latest arrival every so many steps; 0 stops it."""
        self.retract_every = every

    def integrity(self, bint thorough=True) -> None:
        """Raises SchedulerFault (or the cache's own fault) unless every page, slot and reference has exactly one owner.

        Not thorough leaves out that each node is found by its key.
        """
        from tsd.scheduler.audit import audit

        audit(self, thorough)
