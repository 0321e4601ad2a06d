"""The scheduler: which rows run, which pages they use, and what becomes of each request.

Owns requests, request slots, page ownership, the waiting queues and the plans in flight. Knows no tensors, no models,
and no clock but the `now` it is given. What is done with them is functions over the scheduler, a file each: `admission`,
`batch`, `pages`, `retraction`, `landing`, `moves`, `ending`, `figures`.

A request's pages, in order:   [ nodes 0 .. num_nodes ) of the prefix index | private [ num_nodes .. num_pages )
A request's tokens, in order:  prompt | generated;  landed <= computed <= num_tokens + samples in flight - 1 (decode)
"""

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memmove

import numpy as np

from tsd.cache.fence cimport Fence
from tsd.cache.hashing cimport PageHasher
from tsd.cache.index cimport PrefixIndex
from tsd.cache.pool cimport PagePool
from tsd.scheduler.batch cimport decode_rows, fill
from tsd.scheduler.ending cimport end, expire
from tsd.scheduler.figures cimport counters_of, snapshot_of, tell_evictions
from tsd.scheduler.landing cimport step_landed
from tsd.scheduler.moves cimport layers_landed, move_done
from tsd.scheduler.pacing cimport Pace
from tsd.scheduler.pages cimport set_page
from tsd.scheduler.plan cimport Build
from tsd.scheduler.requests cimport E_ABORT, S_RETRACTED, S_RETRACTING, Req, Requests
from tsd.scheduler.retraction cimport pressure, retract, victim
from tsd.scheduler.tiers cimport Tiers
from tsd.scheduler.withheld cimport Withheld

from tsd.scheduler.journal import Journal
from tsd.scheduler.requests import STATE_LABELS, IllegalTransition
from tsd.scheduler.types import LayersLanded, MoveDone, Refused, SchedulerFault, StepLanded

cdef enum:
    EVENT_INTERVAL_S = 1


cdef class Scheduler:
    """See the module. Not thread-safe: one loop drives it."""

    def __cinit__(self, config):
        cdef int i
        if config.page_size < 1 or config.num_pages < 1 or config.max_num_seqs < 1 or config.max_in_flight < 1:
            raise ValueError("page_size, num_pages, max_num_seqs and max_in_flight must be at least 1")
        if config.chunked_prefill_size < 1 or config.mixed_chunk_size < 0 or config.max_model_len < 2:
            raise ValueError("chunked_prefill_size must be at least 1, mixed_chunk_size 0, max_model_len 2")
        if config.prefill_hold < 0 or config.prefill_balance < 0:
            raise ValueError("prefill_hold and prefill_balance must be at least 0")
        self.config = config
        self.page_size = config.page_size
        self.max_slots = config.max_num_seqs
        self.max_pages = min(config.num_pages, (config.max_model_len + self.page_size - 1) // self.page_size)
        self.chunk = config.chunked_prefill_size
        self.mixed_chunk = min(config.mixed_chunk_size or self.chunk, self.chunk)
        self.pace = Pace(config.prefill_hold, min(config.prefill_balance, self.chunk))
        self.max_flights = config.max_in_flight
        self.window = config.overtake_window
        self.ageing = config.ageing_s
        self.room_to_grow = config.room_to_grow
        self.retract_every = config.debug_retract_every
        self.mixed = config.mixed_batch
        self.caching = config.prefix_cache
        self.sharing = config.share_in_flight
        self.pool = PagePool(config.num_pages)
        self.host = PagePool(config.host_pages if self.caching else 0)
        self.journal = Journal()
        self.hasher = PageHasher(self.page_size, config.hash_secret, config.namespace)
        self.index = PrefixIndex(self.page_size, self.pool, self.host, config.disk_blocks if self.host.num_pages else 0)
        self.index.record = config.kv_events
        self.fence = Fence(self.pool)
        self.tiers = Tiers(self.index, config.disk_blocks, config.disk_threshold_pages)
        self.withheld = Withheld(self.index)
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
        self.requests.enqueue(at, self.ageing)
        self.c_submitted += 1
        self.journal.note(now, r.id, "queued")

    def abort(self, request_id, double now, str reason="abort") -> bool:
        """Ends a live request at once, in whatever state; False when there is none of that id."""
        cdef object found = self.by_id.get(request_id)
        if found is None:
            return False
        self.c_aborts += reason == "abort"
        end(self, found, E_ABORT, now, reason, "")
        return True

    cdef int drop(self, int32_t* array, int size, int at) except -1:
        """Removes `at`, keeping the order; returns the new size."""
        cdef int i
        for i in range(size):
            if array[i] == at:
                memmove(array + i, array + i + 1, (size - i - 1) * sizeof(int32_t))
                return size - 1
        raise SchedulerFault(f"request {self.requests.R[at].id} is missing from its list")

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
        cdef int i, at, num_decode = 0, budget, page, waiting, ready
        cdef Req* r
        if now >= self.soonest:
            expire(self, now)
        if self.num_flights >= self.max_flights:
            return None
        build = <Build>self.ring[self.ring_at]
        if self.withheld.short():
            self.withheld.gather()
        if self.retract_every and self.step % self.retract_every == self.retract_every - 1:
            at = victim(self)
            if at >= 0:
                retract(self, at, now)
        # Pages first: a victim must not be in the batch already.
        i = 0
        while i < self.num_running:
            at = self.running[i]
            r = &self.requests.R[at]
            if r.computed == r.num_pages * self.page_size and r.num_tokens + r.samples < r.max_total:
                page = pressure(self, at, now)
                if page >= 0:
                    set_page(self, r, r.num_pages, page)
                    r.num_pages += 1
                elif r.state == S_RETRACTING or r.state == S_RETRACTED:
                    continue
            i += 1
        if self.mixed:
            num_decode = decode_rows(self, build)
            budget = self.chunk
            if num_decode:
                budget = min(budget, max(self.mixed_chunk, 8 * num_decode))
                waiting = min(self.requests.num_waiting, self.num_free_slots)
                ready = self.num_filling + self.requests.num_retracted
                budget = self.pace.budget(num_decode, waiting, ready, budget)
            if num_decode < budget:
                fill(self, build, budget - num_decode, now)
            if num_decode:
                self.pace.took(build.num_prefill, budget - num_decode - build.num_prefill)
        else:
            if not (self.last_was_prefill and self.num_running):
                fill(self, build, self.chunk, now)
            if build.num_rows == 0:
                num_decode = decode_rows(self, build)
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
            tell_evictions(self, now)
        self.step += 1
        self.num_flights += 1
        self.c_steps += 1
        self.ring_at = (self.ring_at + 1) % (self.max_flights + 1)
        (<Build>self.ring[self.ring_at]).reset()
        return plan

    # ---- tiers

    def adopt_disk(self, keys) -> int:
        """Tells which page keys the disk store already holds, the last used first; returns how many blocks it has now.

        Those for which there is no room any more are removed by the first plan.
        """
        return self.tiers.adopt(list(keys))

    # ---- events

    def advance(self, event, double now):
        """Takes in a landed step (returns what it gave), or a copy that is done or well begun (returns None)."""
        if isinstance(event, StepLanded):
            return step_landed(self, event.step, event.tokens, event.failed, now)
        if isinstance(event, MoveDone):
            move_done(self, event, now)
            return None
        if isinstance(event, LayersLanded):
            layers_landed(self, event.move_id, now)
            return None
        raise TypeError(f"{type(event).__name__} is not an event of the scheduler")

    def take_finished(self) -> list:
        """The terminal events since the last call, in order."""
        cdef list out = self.finished
        if out:
            self.finished = []
            return out
        return []

    def flush_cache(self, bint disk=False) -> int:
        """Forgets every page in device and host memory that nobody uses; returns how many that were.

        Blocks on disk stay, which other processes may use too and a later one finds again, unless `disk` is asked for.
        """
        if disk:
            self.tiers.discard(self.tiers.disk.clear())
        return self.index.flush()

    def withhold(self, int device, int host=0) -> None:
        """From now on keeps this many device and host pages out of use, as far as requests can go on without them.

        0 gives them back. Raises ValueError for more pages than there are.
        """
        self.withheld.want(device, host)

    def take_kv_events(self) -> list:
        """What the tiers gained and lost since the last call, in order: see `cache.events.Change`."""
        cdef list out = self.index.changes
        if out:
            self.index.changes = []
        return out

    # ---- operators and tests

    @property
    def counters(self) -> dict:
        """Cumulative counts."""
        return counters_of(self)

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

    def snapshot(self) -> dict:
        """Counts and states of the control plane, in under 2 ms for a million pages; single requests are `view`'s."""
        return snapshot_of(self)

    def debug_retract(self, int every) -> None:
        """Tests: from now on retract the latest arrival every so many steps; 0 stops it."""
        self.retract_every = every

    def integrity(self, bint thorough=True) -> None:
        """Raises SchedulerFault (or the cache's own fault) unless every page, slot and reference has exactly one owner.

        Not thorough leaves out that each node is found by its key, and the list of blocks on disk.
        """
        from tsd.scheduler.audit import audit

        audit(self, thorough)
