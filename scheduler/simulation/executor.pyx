"""An executor made of arrays: what a device would hold, and what a launched step reads and writes there.

Owns the device's pages, the page tables and the steps in flight. A row writes its tokens' cells into its pages and reads
its whole history back from them, so a wrong page, a stale one or one given away too early shows in the sampled token.
Steps are checked when they are launched and executed in that order, each once the copies it waits for are done.

A page that a launched step reads may be written by nobody else before that step lands; the source of a copy may not
change (`copies` counts those), and its target may be read only by steps that wait for it (`loading` names it).
"""

cimport numpy as cnp
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy

from tsd.scheduler.simulation.dice cimport Dice
from tsd.scheduler.simulation.oracle cimport Oracle, Record, next_cell

from tsd.scheduler.simulation.violation import Violation

cnp.import_array()

cdef class Flight:
    """One launched step: its rows, what they sampled, and the pages they read."""

    def __cinit__(self, int rows, int pages):
        self.tokens = <int32_t*>calloc(rows + 1, sizeof(int32_t))
        self.ids = <int64_t*>calloc(rows + 1, sizeof(int64_t))
        self.samples = <uint8_t*>calloc(rows + 1, 1)
        self.pages = <int32_t*>calloc(pages + 1, sizeof(int32_t))
        if self.tokens == NULL or self.ids == NULL or self.samples == NULL or self.pages == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self.tokens)
        free(self.ids)
        free(self.samples)
        free(self.pages)

    cdef object sampled(self):
        """int32 [rows]: each row's token, as the device would hand it out."""
        cdef cnp.npy_intp rows = self.rows
        tokens = cnp.PyArray_SimpleNew(1, &rows, cnp.NPY_INT32)
        memcpy(cnp.PyArray_DATA(tokens), self.tokens, self.rows * sizeof(int32_t))
        return tokens


cdef class Executor:
    """Sizes are those of the scheduler's configuration."""

    def __cinit__(self, config, Oracle oracle):
        cdef int i, cells
        self.config = config
        self.oracle = oracle
        self.page_size = config.page_size
        self.num_pages = config.num_pages
        self.max_slots = config.max_num_seqs
        self.max_pages = (config.max_model_len + self.page_size - 1) // self.page_size
        cells = self.max_slots * self.max_pages
        self.device = <int32_t*>calloc(self.num_pages * self.page_size, sizeof(int32_t))
        self.table = <int32_t*>calloc(cells, sizeof(int32_t))
        self.cell_step = <int64_t*>calloc(cells, sizeof(int64_t))
        self.slot_req = <int64_t*>calloc(self.max_slots, sizeof(int64_t))
        self.slot_last = <int32_t*>calloc(self.max_slots, sizeof(int32_t))
        self.slot_kv = <int32_t*>calloc(self.max_slots, sizeof(int32_t))
        self.readers = <int32_t*>calloc(self.num_pages, sizeof(int32_t))
        self.reader = <int64_t*>calloc(self.num_pages, sizeof(int64_t))
        self.dirty = <uint8_t*>calloc(self.num_pages, 1)
        self.copies = <int32_t*>calloc(self.num_pages, sizeof(int32_t))
        self.loading = <int64_t*>calloc(self.num_pages, sizeof(int64_t))
        if (
            self.device == NULL or self.table == NULL or self.cell_step == NULL or self.slot_req == NULL
            or self.slot_last == NULL or self.slot_kv == NULL or self.readers == NULL or self.reader == NULL
            or self.dirty == NULL or self.copies == NULL or self.loading == NULL
        ):
            raise MemoryError()
        for i in range(self.num_pages * self.page_size):
            self.device[i] = POISON
        for i in range(self.num_pages):
            self.loading[i] = -1
        for i in range(self.max_slots):
            self.slot_req[i] = -1
        for i in range(cells):
            self.cell_step[i] = -1
            self.table[i] = -1
        self.awaited = set()
        self.flights = []
        self.spare = []

    def __dealloc__(self):
        free(self.device)
        free(self.table)
        free(self.cell_step)
        free(self.slot_req)
        free(self.slot_last)
        free(self.slot_kv)
        free(self.readers)
        free(self.reader)
        free(self.dirty)
        free(self.copies)
        free(self.loading)

    # ---- launch

    cdef int change_tables(self, object plan) except -1:
        """What a plan orders before its moves: slots given up and taken, page tables, pages to clean."""
        cdef cnp.ndarray released = plan.released, zero = plan.zero_pages
        cdef cnp.ndarray tslot = plan.table_slots, tindex = plan.table_index, tpage = plan.table_pages
        cdef int i, slot, cell, page
        cdef int32_t* raw = <int32_t*>cnp.PyArray_DATA(released)
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
        return 0

    cdef int admit(self, object admission) except -1:
        cdef Record* record = self.oracle.find(admission.request_id)
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

    cdef int launch(self, object plan) except -1:
        """Takes in the plan's rows as they are now; `execute` runs them."""
        cdef cnp.ndarray aslots = plan.slots, astarts = plan.starts, acounts = plan.counts
        cdef cnp.ndarray asamples = plan.samples, aprefill = plan.prefill_tokens
        cdef int32_t* slots = <int32_t*>cnp.PyArray_DATA(aslots)
        cdef int32_t* starts = <int32_t*>cnp.PyArray_DATA(astarts)
        cdef int32_t* counts = <int32_t*>cnp.PyArray_DATA(acounts)
        cdef uint8_t* samples = <uint8_t*>cnp.PyArray_DATA(asamples)
        cdef int row, at = 0, rows = plan.num_rows, decode = plan.num_decode
        cdef Flight flight
        if self.spare:
            flight = <Flight>self.spare.pop()
        else:
            flight = Flight(self.max_slots, self.max_slots * self.max_pages)
        flight.step = plan.step
        flight.rows = rows
        flight.num_pages = 0
        flight.executed = False
        flight.plan = plan
        flight.waits = plan.waits
        if flight.waits:
            self.awaited.update(flight.waits)
        if rows > self.max_slots or plan.num_tokens > max(self.config.chunked_prefill_size, decode):
            raise Violation(f"step {plan.step} has {rows} rows and {plan.num_tokens} tokens")
        for row in range(rows):
            if row >= decode:
                at += counts[row]
            elif counts[row] != 1 or not samples[row]:
                raise Violation("a decode row is not one sampled token")
            self.launch_row(flight, row, slots[row], starts[row], counts[row], samples[row])
        if at != aprefill.shape[0] or plan.num_tokens != at + decode:
            raise Violation(f"step {plan.step} counts its tokens wrongly")
        self.flights.append(flight)
        return 0

    cdef int launch_row(self, Flight flight, int row, int slot, int start, int count, bint sample) except -1:
        """Checks what the row writes and reads, and notes its pages."""
        cdef int64_t owner = self.slot_req[slot]
        cdef int32_t* table = self.table + slot * self.max_pages
        cdef int page, k, end = start + count, size = self.page_size
        cdef Record* record
        if owner < 0:
            raise Violation(f"slot {slot} runs and belongs to nobody")
        record = self.oracle.find(owner)
        if count < 1 or end >= record.max_total:
            raise Violation(f"request {owner} runs {start} to {end}; it ends at {record.max_total} tokens")
        if start != self.slot_kv[slot]:
            raise Violation(f"request {owner} runs from {start}; {self.slot_kv[slot]} positions are computed")
        self.slot_kv[slot] = end
        self.check_writes(owner, table, start, end)
        for k in range((end + size - 1) // size):
            page = table[k]
            if self.loading[page] >= 0:
                self.check_reads(flight, owner, page)
            if self.readers[page] == 0:
                self.reader[page] = owner
            elif self.reader[page] != owner:
                self.reader[page] = -2
            self.readers[page] += 1
            flight.pages[flight.num_pages] = page
            flight.num_pages += 1
        flight.ids[row] = owner
        flight.samples[row] = sample
        return 0

    cdef int check_writes(self, int64_t owner, int32_t* table, int start, int end) except -1:
        """The pages of positions [start, end) are the request's alone and clean."""
        cdef int k, page, size = self.page_size
        for k in range(start // size, (end - 1) // size + 1):
            page = table[k]
            if page < 0:
                raise Violation(f"request {owner} has no page for position {k * size}")
            if self.readers[page] and self.reader[page] != owner:
                raise Violation(f"page {page} is written for {owner} while a launched step reads it for another")
            if self.copies[page] or self.loading[page] >= 0:
                raise Violation(f"page {page} is written for {owner} while a copy is on its way")
            if self.dirty[page]:
                raise Violation(f"page {page} holds a failed row's leavings")
        return 0

    cdef int check_reads(self, Flight flight, int64_t owner, int page) except -1:
        """A page that is still being filled is read only by a step that waits for it, or runs behind one that does."""
        if self.loading[page] not in self.awaited:
            raise Violation(f"page {page} is read for {owner} in step {flight.step} before it is loaded")
        return 0

    cdef int execute(self, set moves_on_their_way) except -1:
        """Runs the launched steps in order, up to the first that waits for a copy."""
        cdef Flight flight
        for flight in self.flights:
            if flight.executed:
                continue
            if flight.waits and not moves_on_their_way.isdisjoint(flight.waits):
                return 0
            self.execute_step(flight)
            flight.executed = True
            if flight.waits:
                self.awaited.difference_update(flight.waits)
        return 0

    cdef int execute_step(self, Flight flight) except -1:
        cdef object plan = flight.plan
        cdef cnp.ndarray aslots = plan.slots, astarts = plan.starts, acounts = plan.counts
        cdef cnp.ndarray aprefill = plan.prefill_tokens
        cdef int32_t* counts = <int32_t*>cnp.PyArray_DATA(acounts)
        cdef int32_t* prefill = <int32_t*>cnp.PyArray_DATA(aprefill)
        cdef int32_t* pages = flight.pages
        cdef int row, slot, start, at = 0, decode = plan.num_decode
        for row in range(flight.rows):
            slot = (<int32_t*>cnp.PyArray_DATA(aslots))[row]
            start = (<int32_t*>cnp.PyArray_DATA(astarts))[row]
            if row < decode:
                self.execute_row(flight, row, slot, start, 1, pages, &self.slot_last[slot])
            else:
                self.execute_row(flight, row, slot, start, counts[row], pages, prefill + at)
                at += counts[row]
            pages += (start + counts[row] + self.page_size - 1) // self.page_size
        return 0

    cdef int execute_row(
        self, Flight flight, int row, int slot, int start, int count, int32_t* pages, int32_t* ids
    ) except -1:
        """Writes the cells of the row's tokens; the sampled one comes from all cells of its history as its pages hold them.

        The request may have ended since the launch; what it writes and samples then is nobody's.
        """
        cdef int position, k, offset, end = start + count, size = self.page_size
        cdef int32_t cell = 1
        cdef uint32_t* held
        cdef uint32_t* weights
        cdef uint64_t h = 0
        cdef Record* record = self.oracle.recall(flight.ids[row])
        if record != NULL:
            cell = record.salt
        if start:
            cell = self.device[pages[(start - 1) // size] * size + (start - 1) % size]
        for position in range(start, end):
            cell = next_cell(cell, ids[position - start])
            self.device[pages[position // size] * size + position % size] = cell
        if not flight.samples[row]:
            return 0
        for k in range((end + size - 1) // size):
            held = <uint32_t*>self.device + pages[k] * size
            weights = self.oracle.weights + k * size
            for offset in range(min(size, end - k * size)):
                h += <uint64_t>held[offset] * weights[offset]
        flight.tokens[row] = self.oracle.token_of(h)
        self.slot_last[slot] = flight.tokens[row]
        return 0

    cdef bint idle_before(self, int64_t step) noexcept:
        """Whether every step launched before this one has been executed."""
        cdef Flight flight
        for flight in self.flights:
            if flight.step >= step:
                break
            if not flight.executed:
                return False
        return True

    # ---- landing

    cdef bint may_land(self) noexcept:
        """Whether the oldest step in flight has been executed."""
        return len(self.flights) > 0 and (<Flight>self.flights[0]).executed

    cdef Flight land(self):
        """The oldest step in flight is done: its pages are read no more. The caller gives it back by `deliver`."""
        cdef Flight flight = <Flight>self.flights.pop(0)
        cdef int i
        for i in range(flight.num_pages):
            self.readers[flight.pages[i]] -= 1
        return flight

    cdef tuple fail_a_row(self, Flight flight, Dice dice):
        """One row of a flight gave nothing of use."""
        cdef int row = dice.draw(flight.rows)
        cdef Record* record = self.oracle.peek(flight.ids[row])
        if record != NULL:
            record.failed = 1
        self.spoil(flight, row)
        return (row,)

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

    cdef int deliver(self, Flight flight, object outcome) except -1:
        """What the scheduler made of a landed step goes to its requests."""
        cdef cnp.ndarray ids = outcome.request_ids, tokens = outcome.tokens, rows = outcome.rows
        cdef int64_t request_id
        cdef int i, row
        if outcome.step != flight.step:
            raise Violation(f"step {flight.step} came back as {outcome.step}")
        for i in range(ids.shape[0]):
            request_id = (<int64_t*>cnp.PyArray_DATA(ids))[i]
            row = (<int32_t*>cnp.PyArray_DATA(rows))[i]
            if row < 0 or row >= flight.rows or flight.ids[row] != request_id or not flight.samples[row]:
                raise Violation(f"a token for request {request_id} came from row {row}, which is not its own")
            self.oracle.receive(request_id, (<int32_t*>cnp.PyArray_DATA(tokens))[i])
        flight.plan = None
        self.spare.append(flight)
        return 0

    cdef int check_ends(self, object outcome) except -1:
        """Whoever got its last token in this step has ended by now."""
        cdef cnp.ndarray ids = outcome.request_ids
        cdef int i
        for i in range(ids.shape[0]):
            self.oracle.check_end((<int64_t*>cnp.PyArray_DATA(ids))[i])
        return 0

    cdef bytes content(self, int page):
        """What a device page holds."""
        return (<char*>(self.device + page * self.page_size))[: self.page_size * 4]
