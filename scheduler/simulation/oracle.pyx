"""What every request must get: its tokens, its one end and a cause for it.

As with real KV, the cell of a position depends on every token up to it: cell = hash(cell before, token), from the tenant's
salt on. The token after a history is a weighted sum of all its cells, so one wrong cell anywhere gives another token.
Knows nothing about pages, steps or the scheduler.
"""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from tsd.scheduler.simulation.violation import Violation

cdef enum:
    MAX_RECORDS = 4096


cdef uint64_t absorb(uint64_t h, int32_t token) noexcept:
    h = (h ^ <uint64_t>(token + 1)) * <uint64_t>0x9E3779B97F4A7C15
    return h ^ (h >> 29)


cdef int32_t next_cell(int32_t before, int32_t token) noexcept:
    return <int32_t>(absorb(<uint64_t>before * 31, token) >> 24)


cdef class Oracle:
    """The records of the last MAX_RECORDS requests, none longer than `longest` tokens."""

    def __cinit__(self, uint64_t seed, int longest, int vocab):
        cdef int i
        self.longest = longest
        self.vocab = vocab
        self.live = []
        self.records = <Record*>calloc(MAX_RECORDS, sizeof(Record))
        self.weights = <uint32_t*>calloc(longest + 1, sizeof(uint32_t))
        if self.records == NULL or self.weights == NULL:
            raise MemoryError()
        for i in range(longest + 1):
            self.weights[i] = <uint32_t>(absorb(seed + i, i) >> 16) | 1

    def __dealloc__(self):
        cdef int i
        if self.records != NULL:
            for i in range(MAX_RECORDS):
                free(self.records[i].tokens)
        free(self.records)
        free(self.weights)

    cdef bint has_room(self, int64_t request_id) noexcept:
        """Whether the place of this id's record is free."""
        return not self.records[request_id % MAX_RECORDS].live

    cdef int open(self, object spec, list tokens) except -1:
        """The request was accepted."""
        cdef int64_t request_id = spec.request_id
        cdef Record* record = &self.records[request_id % MAX_RECORDS]
        cdef int i, length = len(tokens)
        free(record.tokens)
        memset(record, 0, sizeof(Record))
        record.id = request_id
        record.tokens = <int32_t*>calloc(self.longest + 1, sizeof(int32_t))
        if record.tokens == NULL:
            raise MemoryError()
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
        self.live.append(request_id)
        return 0

    cdef Record* recall(self, int64_t request_id) noexcept:
        """The record of a request that may have ended; NULL when its place has been taken."""
        cdef Record* record = &self.records[request_id % MAX_RECORDS]
        return record if record.id == request_id else NULL

    cdef Record* peek(self, int64_t request_id) noexcept:
        """The record of a live request, or NULL."""
        cdef Record* record = &self.records[request_id % MAX_RECORDS]
        return record if record.id == request_id and record.live else NULL

    cdef Record* find(self, int64_t request_id) except NULL:
        cdef Record* record = self.peek(request_id)
        if record == NULL:
            raise Violation(f"request {request_id} is not live")
        return record

    cdef void extend(self, Record* record, int token) noexcept:
        """What the history's cells and their hash are one token later."""
        record.cell = next_cell(record.cell, token)
        record.hash += <uint64_t><uint32_t>record.cell * self.weights[record.hashed]
        record.hashed += 1

    cdef int token_of(self, uint64_t h) noexcept:
        """The token that follows a history of this hash."""
        return <int>(((h * <uint64_t>0x9E3779B97F4A7C15) >> 33) % <uint64_t>self.vocab)

    cdef int receive(self, int64_t request_id, int token) except -1:
        """The request is told this token."""
        cdef Record* record = self.find(request_id)
        cdef int want
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

    cdef int check_end(self, int64_t request_id) except -1:
        """A request that has all its tokens must have ended with the step that gave the last."""
        cdef Record* record = self.peek(request_id)
        if record != NULL and record.due:
            raise Violation(f"request {request_id} reached its end and did not end")
        return 0

    cdef int check_deadlines(self, double now) except -1:
        for request_id in self.live:
            if self.records[<int64_t>request_id % MAX_RECORDS].deadline <= now:
                raise Violation(f"request {request_id} lives past its deadline")
        return 0

    cdef Record* close(self, object end, double now) except NULL:
        """A terminal event; returns the record, no longer live."""
        cdef Record* record = self.find(end.request_id)
        reason = end.reason
        right = (
            (reason == "stop" and record.due == 1 and end.stop_token == record.tokens[record.count - 1])
            or (reason == "length" and record.due == 2)
            or (reason == "abort" and record.aborted)
            or (reason == "deadline" and now >= record.deadline)
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
        return record

    cdef int lose_all(self) except -1:
        """The engine died: the front ends every open request with an error. Nothing more may come for any of them."""
        for request_id in self.live:
            self.records[<int64_t>request_id % MAX_RECORDS].live = 0
        self.live.clear()
        return 0
