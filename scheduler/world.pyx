"""The simulator's world: an executor made of arrays, clients that submit and abort, copies that delay, reorder and fail.

Owns what a device, a host tier and a disk would hold, and what each request must get. As with real KV, the cell of a
position depends on every token up to it: cell = hash(cell before, token), from the tenant's salt on. The token after a
history is a weighted sum of all its cells, read back from the pages the plan names. Drives a real Scheduler through its public
interface only, and raises Violation at the first thing that is not as it must be.

A page that a launched step reads may be written by nobody else before that step lands; a copy's source may not change
and its target may not be used while it is on its way.
"""

cimport numpy as cnp
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memset

import numpy as np

from tsd.scheduler.types import MoveDone, Refused, RequestSpec, StepLanded

cnp.import_array()

cdef enum:
    MAX_RECORDS = 4096
    POISON = -7


class Violation(AssertionError):
    """The scheduler or the cache did something that must never happen."""


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


cdef inline uint64_t absorb(uint64_t h, int32_t token) noexcept:
    h = (h ^ <uint64_t>(token + 1)) * <uint64_t>0x9E3779B97F4A7C15
    return h ^ (h >> 29)


cdef inline int32_t next_cell(int32_t before, int32_t token) noexcept:
    return <int32_t>(absorb(<uint64_t>before * 31, token) >> 24)


cdef class Copy:
    cdef object move
    cdef int delay
    cdef list before


cdef class Flight:
    cdef int64_t step
    cdef int rows
    cdef int32_t* tokens
    cdef int64_t* ids
    cdef uint8_t* samples
    cdef int32_t* pages
    cdef int64_t* readers
    cdef int num_pages, cap_pages
    cdef object plan

    def __cinit__(self, int rows, int pages):
        self.tokens = <int32_t*>calloc(rows + 1, sizeof(int32_t))
        self.ids = <int64_t*>calloc(rows + 1, sizeof(int64_t))
        self.samples = <uint8_t*>calloc(rows + 1, 1)
        self.pages = <int32_t*>calloc(pages + 1, sizeof(int32_t))
        self.readers = <int64_t*>calloc(pages + 1, sizeof(int64_t))
        self.cap_pages = pages

    def __dealloc__(self):
        free(self.tokens)
        free(self.ids)
        free(self.samples)
        free(self.pages)
        free(self.readers)


cdef class World:
    """One scheduler's life. `knobs`: chances in parts of 1024 and sizes, see `simulator.Knobs`."""

    cdef readonly object scheduler
    cdef readonly int64_t step
    cdef readonly int64_t tokens_checked
    cdef object config, knobs
    cdef int page_size, max_pages, num_pages, host_pages, vocab
    cdef uint64_t rng, seed
    cdef Record* records
    cdef uint64_t* weights
    cdef int32_t* device
    cdef int32_t* host
    cdef int32_t* table
    cdef int64_t* cell_step
    cdef int64_t* slot_req
    cdef int32_t* slot_last
    cdef int32_t* slot_kv
    cdef int32_t* readers
    cdef int64_t* reader
    cdef uint8_t* dirty
    cdef int32_t* copies
    cdef int32_t* host_readers
    cdef int32_t* host_writers
    cdef list flights, moving, idle_flights
    cdef dict disk
    cdef dict contents
    cdef set published
    cdef list prefixes
    cdef list live
    cdef int64_t next_id
    cdef int idle, longest
    cdef double now
    cdef bint kv_events
    cdef int chance_submit, chance_abort, chance_fail_row, chance_fail_move, chance_rot, chance_land, target, patience
    cdef int check_every, max_delay, chance_deadline

    def __init__(self, scheduler, uint64_t seed, knobs, dict disk):
        cdef int i
        config = scheduler.config
        self.scheduler = scheduler
        self.config = config
        self.page_size = config.page_size
        self.num_pages = config.num_pages
        self.host_pages = config.host_pages
        self.max_pages = (config.max_model_len + self.page_size - 1) // self.page_size
        self.longest = min(config.max_model_len, config.num_pages * self.page_size)
        self.seed = seed
        self.rng = seed * <uint64_t>0x9E3779B97F4A7C15 + 1
        self.vocab = knobs.vocab
        self.chance_submit = knobs.submit
        self.chance_abort = knobs.abort
        self.chance_fail_row = knobs.fail_row
        self.chance_fail_move = knobs.fail_move
        self.chance_rot = knobs.rot
        self.chance_land = knobs.land
        self.chance_deadline = knobs.deadline
        self.max_delay = knobs.max_delay
        self.target = knobs.live
        self.patience = knobs.patience
        self.check_every = knobs.check_every
        self.knobs = knobs
        self.kv_events = config.kv_events
        self.records = <Record*>calloc(MAX_RECORDS, sizeof(Record))
        self.weights = <uint64_t*>calloc(self.longest + 1, sizeof(uint64_t))
        for i in range(self.longest + 1):
            self.weights[i] = absorb(seed + i, i) | 1
        self.device = <int32_t*>calloc(self.num_pages * self.page_size, sizeof(int32_t))
        self.host = <int32_t*>calloc(self.host_pages * self.page_size + 1, sizeof(int32_t))
        self.table = <int32_t*>calloc(config.max_num_seqs * self.max_pages, sizeof(int32_t))
        self.cell_step = <int64_t*>calloc(config.max_num_seqs * self.max_pages, sizeof(int64_t))
        self.slot_req = <int64_t*>calloc(config.max_num_seqs, sizeof(int64_t))
        self.slot_last = <int32_t*>calloc(config.max_num_seqs, sizeof(int32_t))
        self.slot_kv = <int32_t*>calloc(config.max_num_seqs, sizeof(int32_t))
        self.readers = <int32_t*>calloc(self.num_pages, sizeof(int32_t))
        self.reader = <int64_t*>calloc(self.num_pages, sizeof(int64_t))
        self.dirty = <uint8_t*>calloc(self.num_pages, 1)
        self.copies = <int32_t*>calloc(self.num_pages, sizeof(int32_t))
        self.host_readers = <int32_t*>calloc(self.host_pages + 1, sizeof(int32_t))
        self.host_writers = <int32_t*>calloc(self.host_pages + 1, sizeof(int32_t))
        for i in range(self.num_pages * self.page_size):
            self.device[i] = POISON
        for i in range(config.max_num_seqs):
            self.slot_req[i] = -1
        for i in range(config.max_num_seqs * self.max_pages):
            self.cell_step[i] = -1
            self.table[i] = -1
        self.flights = []
        self.idle_flights = []
        self.moving = []
        self.live = []
        self.disk = disk
        self.contents = {}
        self.published = set()
        self.prefixes = [[self.draw(self.vocab) for _ in range(self.longest)] for _ in range(4)]
        self.next_id = 1

    def __dealloc__(self):
        cdef int i
        if self.records != NULL:
            for i in range(MAX_RECORDS):
                free(self.records[i].tokens)
        free(self.records)
        free(self.weights)
        free(self.device)
        free(self.host)
        free(self.table)
        free(self.cell_step)
        free(self.slot_req)
        free(self.slot_last)
        free(self.slot_kv)
        free(self.readers)
        free(self.reader)
        free(self.dirty)
        free(self.copies)
        free(self.host_readers)
        free(self.host_writers)

    cdef inline int draw(self, int below) noexcept:
        """Uniform in [0, below): xorshift64*."""
        self.rng ^= self.rng >> 12
        self.rng ^= self.rng << 25
        self.rng ^= self.rng >> 27
        return <int>(((self.rng * <uint64_t>0x2545F4914F6CDD1D) >> 33) % <uint64_t>below)

    cdef inline bint luck(self, int parts) noexcept:
        """True `parts` times in 1024."""
        return parts > 0 and self.draw(1024) < parts

    cdef inline int token_of(self, uint64_t h) noexcept:
        return <int>(((h * <uint64_t>0x9E3779B97F4A7C15) >> 33) % <uint64_t>self.vocab)

    # ---- clients

    cdef int submit(self) except -1:
        """A prompt that shares a random stretch with a common prefix or with an earlier conversation."""
        cdef Record* record = &self.records[self.next_id % MAX_RECORDS]
        cdef int shared, extra, i, room, length
        cdef list base = self.prefixes[self.draw(len(self.prefixes))]
        if record.live:
            return 0
        room = self.longest - 1
        shared = self.draw(min(room, len(base)) + 1)
        extra = 1 + self.draw(self.knobs.tail)
        tokens = base[:shared] + [self.draw(self.vocab) for _ in range(extra)]
        if not self.luck(self.knobs.too_long):
            tokens = tokens[:room]
        length = len(tokens)
        prompt = np.array(tokens, np.int32)
        spec = RequestSpec(self.next_id, prompt, 1 + self.draw(self.knobs.output))
        spec.min_tokens = self.draw(4)
        spec.stop_token_ids = (self.draw(self.vocab), self.draw(self.vocab)) if self.luck(512) else ()
        spec.priority = self.draw(3) if self.luck(self.knobs.priority) else 0
        spec.salt = b"tenant" if self.luck(self.knobs.salt) else b""
        if self.luck(self.chance_deadline):
            spec.deadline = self.now + 0.001 * (1 + self.draw(200))
        try:
            self.scheduler.submit(spec, self.now)
        except Refused as refusal:
            if refusal.code != "queue_full" and length < self.longest:
                raise Violation(f"a request of {length} tokens was refused: {refusal.message}") from refusal
            return 0
        if length >= self.longest:
            raise Violation(f"a request of {length} tokens was accepted; {self.longest} tokens fit in all")
        free(record.tokens)
        memset(record, 0, sizeof(Record))
        record.id = self.next_id
        record.tokens = <int32_t*>calloc(self.longest + 1, sizeof(int32_t))
        record.cell = record.salt = 77 if spec.salt else 1
        for i in range(length):
            record.tokens[i] = tokens[i]
            self.extend(record, tokens[i])
        record.count = record.num_prompt = length
        record.max_total = min(self.longest, length + <int>spec.max_tokens)
        record.min_total = length + <int>spec.min_tokens
        record.stops[0] = spec.stop_token_ids[0] if spec.stop_token_ids else -1
        record.stops[1] = spec.stop_token_ids[1] if spec.stop_token_ids else -1
        record.deadline = spec.deadline if spec.deadline is not None else float("inf")
        record.live = 1
        self.live.append(self.next_id)
        self.next_id += 1
        return 0

    cdef void extend(self, Record* record, int token) noexcept:
        """The oracle: what the history's cells and their hash are one token later."""
        record.cell = next_cell(record.cell, token)
        record.hash += <uint64_t>record.cell * self.weights[record.hashed]
        record.hashed += 1

    cdef int abort(self) except -1:
        cdef int64_t request_id
        if not self.live:
            return 0
        request_id = self.live[self.draw(len(self.live))]
        self.records[request_id % MAX_RECORDS].aborted = 1
        if not self.scheduler.abort(request_id, self.now):
            raise Violation(f"live request {request_id} was not found by abort")
        return 0

    cdef Record* find(self, int64_t request_id) except NULL:
        cdef Record* record = &self.records[request_id % MAX_RECORDS]
        if record.id != request_id or not record.live:
            raise Violation(f"request {request_id} is not live")
        return record

    # ---- the executor

    cdef int launch(self, plan) except -1:
        cdef cnp.ndarray released = plan.released, zero = plan.zero_pages
        cdef cnp.ndarray tslot = plan.table_slots, tindex = plan.table_index, tpage = plan.table_pages
        cdef cnp.ndarray aslots = plan.slots, astarts = plan.starts, acounts = plan.counts
        cdef cnp.ndarray asamples = plan.samples, aprefill = plan.prefill_tokens
        cdef int32_t* slots = <int32_t*>cnp.PyArray_DATA(aslots)
        cdef int32_t* starts = <int32_t*>cnp.PyArray_DATA(astarts)
        cdef int32_t* counts = <int32_t*>cnp.PyArray_DATA(acounts)
        cdef uint8_t* samples = <uint8_t*>cnp.PyArray_DATA(asamples)
        cdef int32_t* prefill = <int32_t*>cnp.PyArray_DATA(aprefill)
        cdef int i, slot, cell, page, row, at = 0, rows = plan.num_rows, decode = plan.num_decode
        cdef Flight flight
        cdef int32_t* raw
        raw = <int32_t*>cnp.PyArray_DATA(released)
        for i in range(released.shape[0]):
            if self.slot_req[raw[i]] < 0:
                raise Violation(f"slot {raw[i]} was released and belongs to nobody")
            self.slot_req[raw[i]] = -1
        for admission in plan.admitted:
            self.admit(admission)
        for i in range(tslot.shape[0]):
            slot = (<int32_t*>cnp.PyArray_DATA(tslot))[i]
            cell = slot * self.max_pages + (<int32_t*>cnp.PyArray_DATA(tindex))[i]
            page = (<int32_t*>cnp.PyArray_DATA(tpage))[i]
            if page < 0 or page >= self.num_pages:
                raise Violation(f"page {page} does not exist")
            if self.cell_step[cell] == plan.step:
                raise Violation(f"slot {slot} page-table cell was written twice in step {plan.step}")
            self.cell_step[cell] = plan.step
            self.table[cell] = page
        raw = <int32_t*>cnp.PyArray_DATA(zero)
        for i in range(zero.shape[0]):
            self.dirty[raw[i]] = 0
        for move in plan.moves:
            self.begin_copy(move)
        if self.idle_flights:
            flight = <Flight>self.idle_flights.pop()
        else:
            flight = Flight(self.config.max_num_seqs, self.config.max_num_seqs * self.max_pages)
        flight.step = plan.step
        flight.rows = rows
        flight.num_pages = 0
        flight.plan = plan
        if rows > self.config.max_num_seqs or plan.num_tokens > max(self.config.chunked_prefill_size, decode):
            raise Violation(f"step {plan.step} has {rows} rows and {plan.num_tokens} tokens")
        for row in range(rows):
            if row < decode:
                if counts[row] != 1 or not samples[row]:
                    raise Violation("a decode row is not one sampled token")
                self.run_row(flight, row, slots[row], starts[row], 1, &self.slot_last[slots[row]], True)
            else:
                self.run_row(flight, row, slots[row], starts[row], counts[row], prefill + at, samples[row])
                at += counts[row]
        if at != aprefill.shape[0] or plan.num_tokens != at + decode:
            raise Violation(f"step {plan.step} counts its tokens wrongly")
        self.flights.append(flight)
        return 0

    cdef int admit(self, admission) except -1:
        cdef Record* record = self.find(admission.request_id)
        cdef int slot = admission.slot
        cdef cnp.ndarray history = admission.history
        if self.slot_req[slot] >= 0:
            raise Violation(f"slot {slot} was given to {record.id} and belongs to {self.slot_req[slot]}")
        if admission.num_prompt != record.num_prompt or admission.num_tokens != record.count:
            raise Violation(f"request {record.id} was admitted with wrong lengths")
        if (
            history.shape[0] != record.count
            or memcmp(cnp.PyArray_DATA(history), record.tokens, record.count * sizeof(int32_t)) != 0
        ):
            raise Violation(f"request {record.id} was admitted with another history")
        if admission.num_cached >= admission.num_tokens or admission.num_cached % self.page_size:
            raise Violation(f"request {record.id} was admitted with {admission.num_cached} cached tokens")
        self.slot_req[slot] = record.id
        self.slot_kv[slot] = admission.num_cached
        return 0

    cdef int run_row(
        self, Flight flight, int row, int slot, int start, int count, int32_t* ids, bint sample
    ) except -1:
        """Writes the row's tokens into its pages, then reads its whole history back from them."""
        cdef int64_t owner = self.slot_req[slot]
        cdef int32_t* table = self.table + slot * self.max_pages
        cdef int position, page, k, end = start + count, size = self.page_size, offset
        cdef uint64_t h
        cdef int32_t cell
        cdef int32_t* held
        cdef Record* record
        if owner < 0:
            raise Violation(f"slot {slot} runs and belongs to nobody")
        record = self.find(owner)
        if count < 1 or end >= record.max_total:
            raise Violation(f"request {owner} runs {start} to {end}; it ends at {record.max_total} tokens")
        if start != self.slot_kv[slot]:
            raise Violation(f"request {owner} runs from {start}; {self.slot_kv[slot]} positions are computed")
        self.slot_kv[slot] = end
        cell = record.salt
        if start:
            cell = self.device[table[(start - 1) // size] * size + (start - 1) % size]
        for position in range(start, end):
            page = table[position // size]
            if position == start or position % size == 0:
                if page < 0:
                    raise Violation(f"request {owner} has no page for position {position}")
                if self.readers[page] and self.reader[page] != owner:
                    raise Violation(f"page {page} is written for {owner} while a launched step reads it for another")
                if self.copies[page]:
                    raise Violation(f"page {page} is written for {owner} while a copy is on its way")
                if self.dirty[page]:
                    raise Violation(f"page {page} holds a failed row's leavings")
            cell = next_cell(cell, ids[position - start])
            self.device[page * size + position % size] = cell
        for k in range((end + size - 1) // size):
            page = table[k]
            if self.readers[page] == 0:
                self.reader[page] = owner
            elif self.reader[page] != owner:
                self.reader[page] = -2
            self.readers[page] += 1
            flight.pages[flight.num_pages] = page
            flight.num_pages += 1
        flight.ids[row] = owner
        flight.samples[row] = sample
        if sample:
            h = 0
            position = 0
            for k in range((end + size - 1) // size):
                held = self.device + table[k] * size
                for offset in range(min(size, end - position)):
                    h += <uint64_t>held[offset] * self.weights[position + offset]
                position += size
            flight.tokens[row] = self.token_of(h)
            self.slot_last[slot] = flight.tokens[row]
        return 0

    cdef int land(self) except -1:
        cdef Flight flight = <Flight>self.flights.pop(0)
        cdef int i, page, size = self.page_size
        cdef cnp.ndarray ids, tokens, rows
        cdef Record* record
        cdef cnp.npy_intp n = flight.rows
        cdef tuple failed = ()
        cdef list ended
        sampled = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_INT32)
        memcpy(cnp.PyArray_DATA(sampled), flight.tokens, flight.rows * sizeof(int32_t))
        if flight.rows and self.luck(self.chance_fail_row):
            i = self.draw(flight.rows)
            failed = (i,)
            record = &self.records[flight.ids[i] % MAX_RECORDS]
            if record.id == flight.ids[i] and record.live:
                record.failed = 1
                self.spoil(flight, i)
        for i in range(flight.num_pages):
            page = flight.pages[i]
            self.readers[page] -= 1
        outcome = self.scheduler.advance(StepLanded(flight.step, sampled, failed), self.now)
        if outcome.step != flight.step:
            raise Violation(f"step {flight.step} came back as {outcome.step}")
        ids = outcome.request_ids
        tokens = outcome.tokens
        rows = outcome.rows
        for i in range(ids.shape[0]):
            self.receive(
                flight,
                (<int64_t*>cnp.PyArray_DATA(ids))[i],
                (<int32_t*>cnp.PyArray_DATA(tokens))[i],
                (<int32_t*>cnp.PyArray_DATA(rows))[i],
            )
        self.settle()
        for i in range(ids.shape[0]):
            record = &self.records[(<int64_t*>cnp.PyArray_DATA(ids))[i] % MAX_RECORDS]
            if record.live and record.due:
                raise Violation(f"request {record.id} reached its end and did not end")
        flight.plan = None
        self.idle_flights.append(flight)
        return 0

    cdef int spoil(self, Flight flight, int row) except -1:
        """A failed row leaves the pages it wrote in this step unfit for use until they are cleaned."""
        cdef cnp.ndarray slots = flight.plan.slots, starts = flight.plan.starts, counts = flight.plan.counts
        cdef int slot = (<int32_t*>cnp.PyArray_DATA(slots))[row]
        cdef int start = (<int32_t*>cnp.PyArray_DATA(starts))[row]
        cdef int end = start + (<int32_t*>cnp.PyArray_DATA(counts))[row]
        cdef int k
        if self.slot_req[slot] != flight.ids[row]:
            return 0
        for k in range(start // self.page_size, (end - 1) // self.page_size + 1):
            self.dirty[self.table[slot * self.max_pages + k]] = 1
        return 0

    cdef int receive(self, Flight flight, int64_t request_id, int token, int row) except -1:
        cdef Record* record = self.find(request_id)
        cdef int want
        if row < 0 or row >= flight.rows or flight.ids[row] != request_id or not flight.samples[row]:
            raise Violation(f"a token for request {request_id} came from row {row}, which is not its own")
        if record.due:
            raise Violation(f"request {request_id} got a token past its end")
        want = self.token_of(record.hash)
        if token != want:
            raise Violation(
                f"request {request_id} got token {token} after {record.count} tokens; the oracle says {want}"
            )
        self.extend(record, token)
        record.tokens[record.count] = token
        record.count += 1
        record.emitted += 1
        self.tokens_checked += 1
        if record.count >= record.min_total and (token == record.stops[0] or token == record.stops[1]):
            record.due = 1
        elif record.count >= record.max_total:
            record.due = 2
        return 0

    cdef int settle(self) except -1:
        """Checks terminal events."""
        cdef Record* record
        for end in self.scheduler.take_finished():
            record = self.find(end.request_id)
            reason = end.reason
            right = (
                (reason == "stop" and record.due == 1 and end.stop_token == record.tokens[record.count - 1])
                or (reason == "length" and record.due == 2)
                or (reason == "abort" and record.aborted)
                or (reason == "deadline" and self.now >= record.deadline)
                or (reason == "error" and record.failed)
            )
            if not right:
                raise Violation(f"request {end.request_id} ended with {reason}, which it had no cause for")
            if end.num_output != record.emitted or end.num_prompt != record.num_prompt:
                raise Violation(f"request {end.request_id} counts {end.num_output} tokens, {record.emitted} came")
            if end.num_cached >= record.num_prompt and end.num_cached > 0 and end.retractions == 0:
                raise Violation(f"request {end.request_id} had {end.num_cached} of {record.num_prompt} tokens cached")
            record.live = 0
            self.live.remove(end.request_id)
            self.idle = 0
            if self.luck(256):
                # The next turn of the conversation begins with all of this one.
                self.prefixes[self.draw(len(self.prefixes))] = [record.tokens[i] for i in range(record.count)]
        return 0

    # ---- copies

    cdef bytes page_bytes(self, int32_t* tier, int page):
        return (<char*>(tier + page * self.page_size))[: self.page_size * 4]

    cdef int begin_copy(self, move) except -1:
        cdef Copy copy = Copy()
        cdef int i, source, target
        copy.move = move
        copy.delay = self.draw(self.max_delay + 1)
        copy.before = []
        kind = move.kind
        for i in range(len(move.sources)):
            source = move.sources[i]
            target = move.targets[i]
            if kind == "write_back":
                held = self.page_bytes(self.device, source)
                if self.contents.setdefault(move.keys[i], held) != held:
                    raise Violation(f"two contents for one key, in page {source}")
                copy.before.append(held)
                self.copies[source] += 1
                self.lock_host(target, True)
            elif kind == "load_back":
                if self.readers[target] or self.copies[target]:
                    raise Violation(f"page {target} is the target of a copy and in use")
                self.copies[target] += 1
                self.lock_host(source, False)
            elif kind == "store":
                copy.before.append(self.page_bytes(self.host, source))
                self.lock_host(source, False)
            elif kind == "prefetch":
                self.lock_host(target, True)
        if kind == "discard":
            for key in move.keys:
                self.disk.pop(key, None)
        self.moving.append(copy)
        return 0

    cdef int lock_host(self, int page, bint write) except -1:
        if self.host_writers[page] or (write and self.host_readers[page]):
            raise Violation(f"host page {page} is used by two copies")
        if write:
            self.host_writers[page] = 1
        else:
            self.host_readers[page] += 1
        return 0

    cdef int end_copy(self, Copy copy) except -1:
        cdef int i, source, target, good = -1, size = self.page_size
        cdef bint ok = not self.luck(self.chance_fail_move)
        move = copy.move
        kind = move.kind
        if kind == "prefetch" and ok:
            good = 0
            for key in move.keys:
                if key not in self.disk or self.luck(self.chance_rot):
                    break
                good += 1
            ok = good == len(move.keys)
        for i in range(len(move.sources)):
            source = move.sources[i]
            target = move.targets[i]
            if kind == "write_back":
                if self.page_bytes(self.device, source) != copy.before[i]:
                    raise Violation(f"page {source} changed under a copy")
                self.copies[source] -= 1
                self.host_writers[target] = 0
                if ok:
                    memcpy(self.host + target * size, self.device + source * size, size * sizeof(int32_t))
            elif kind == "load_back":
                self.copies[target] -= 1
                self.host_readers[source] -= 1
                if ok:
                    memcpy(self.device + target * size, self.host + source * size, size * sizeof(int32_t))
            elif kind == "store":
                if self.page_bytes(self.host, source) != copy.before[i]:
                    raise Violation(f"host page {source} changed under a copy")
                self.host_readers[source] -= 1
                if ok:
                    self.disk[move.keys[i]] = copy.before[i]
            elif kind == "prefetch":
                self.host_writers[target] = 0
                if i < good:
                    held = self.disk[move.keys[i]]
                    memcpy(self.host + target * size, <char*>(<bytes>held), size * sizeof(int32_t))
        self.scheduler.advance(MoveDone(move.move_id, ok, good), self.now)
        return 0

    cdef int copy_step(self) except -1:
        """Some copies end, in no particular order."""
        cdef int i = self.draw(len(self.moving))
        cdef Copy copy = <Copy>self.moving[i]
        for copy in list(self.moving):
            copy.delay -= 1
        copy = <Copy>self.moving[i]
        if copy.delay <= 0:
            del self.moving[i]
            self.end_copy(copy)
            self.idle = 0
        return 0

    cdef int mirror(self) except -1:
        """Store and remove events must pair up."""
        for stored, key, parent, tokens in self.scheduler.take_kv_events():
            if stored:
                if key in self.published:
                    raise Violation("a page was announced twice")
                if parent is not None and parent not in self.published:
                    raise Violation("a page was announced before its parent")
                self.published.add(key)
            else:
                if key not in self.published:
                    raise Violation("a page was withdrawn that had not been announced")
                self.published.remove(key)
        return 0

    # ---- the loop

    cdef int turn(self, bint submit) except -1:
        cdef object plan
        self.now += 0.001
        if submit and len(self.live) < self.target and self.luck(self.chance_submit):
            self.submit()
        if self.luck(self.chance_abort):
            self.abort()
            self.settle()
        if self.moving:
            self.copy_step()
        plan = self.scheduler.next_plan(self.now)
        if self.chance_deadline:
            self.settle()
            for request_id in self.live:
                if self.records[<int64_t>request_id % MAX_RECORDS].deadline <= self.now:
                    raise Violation(f"request {request_id} lives past its deadline")
        if plan is not None:
            self.launch(plan)
            self.step += 1
            if plan.num_rows:
                self.idle = 0
        if self.flights and (plan is None or self.luck(self.chance_land)):
            self.land()
        self.idle += 1
        if self.idle > self.patience and self.live:
            raise Violation(f"nothing has happened for {self.idle} turns; {len(self.live)} requests are live")
        if self.check_every and self.step % self.check_every == 0:
            self.scheduler.integrity(self.step % 64 == 0)
            if self.kv_events:
                self.mirror()
        return 0

    def run(self, int64_t steps) -> None:
        """Runs until `steps` plans were launched."""
        cdef int64_t end = self.step + steps
        while self.step < end:
            self.turn(True)

    def drain(self) -> None:
        """No more requests: everything ends, and nothing is left."""
        cdef int turns = 0
        while self.scheduler.has_work or self.flights or self.moving:
            self.turn(False)
            turns += 1
            if turns > 200_000:
                raise Violation("the scheduler does not come to rest")
        self.settle()
        if self.live:
            raise Violation(f"requests {self.live[:5]} never ended")
        self.scheduler.integrity()
        self.scheduler.flush_cache()
        self.scheduler.integrity()
        tiers = self.scheduler.snapshot()["tiers"]
        if tiers["device"]["free"] != self.num_pages:
            raise Violation(f"{self.num_pages - tiers['device']['free']} device pages leaked")
        if tiers["host"] is not None and tiers["host"]["free"] != self.host_pages:
            raise Violation(f"{self.host_pages - tiers['host']['free']} host pages leaked")
        if self.scheduler.num_running_requests:
            raise Violation(f"{self.scheduler.num_running_requests} slots leaked")
        if self.kv_events:
            self.mirror()
            if self.published:
                raise Violation(f"{len(self.published)} announced pages were never withdrawn")
