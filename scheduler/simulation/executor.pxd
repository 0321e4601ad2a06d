from libc.stdint cimport int32_t, int64_t, uint8_t

from tsd.scheduler.simulation.dice cimport Dice
from tsd.scheduler.simulation.oracle cimport Oracle

cdef enum:
    POISON = -7


cdef class Flight:
    cdef int64_t step
    cdef int rows
    cdef int32_t* tokens
    cdef int64_t* ids
    cdef uint8_t* samples
    cdef int32_t* pages
    cdef int num_pages
    cdef bint executed
    cdef tuple waits
    cdef object plan
    cdef object sampled(self)


cdef class Executor:
    cdef Oracle oracle
    cdef object config
    cdef int page_size, num_pages, max_pages, max_slots
    cdef int32_t* device
    cdef int32_t* table
    cdef int64_t* cell_step
    cdef int64_t* slot_req
    cdef int32_t* slot_last
    cdef int32_t* slot_kv
    cdef int32_t* readers
    cdef int64_t* reader
    cdef uint8_t* dirty
    cdef int32_t* copies
    cdef int64_t* loading
    cdef set awaited
    cdef readonly list flights
    cdef list spare
    cdef int change_tables(self, object plan) except -1
    cdef int admit(self, object admission) except -1
    cdef int launch(self, object plan) except -1
    cdef int launch_row(self, Flight flight, int row, int slot, int start, int count, bint sample) except -1
    cdef int check_writes(self, int64_t owner, int32_t* table, int start, int end) except -1
    cdef int check_reads(self, Flight flight, int64_t owner, int page) except -1
    cdef int execute(self, set moves_on_their_way) except -1
    cdef int execute_step(self, Flight flight) except -1
    cdef int execute_row(
        self, Flight flight, int row, int slot, int start, int count, int32_t* pages, int32_t* ids
    ) except -1
    cdef bint idle_before(self, int64_t step) noexcept
    cdef bint may_land(self) noexcept
    cdef Flight land(self)
    cdef tuple fail_a_row(self, Flight flight, Dice dice)
    cdef int spoil(self, Flight flight, int row) except -1
    cdef int deliver(self, Flight flight, object outcome) except -1
    cdef int check_ends(self, object outcome) except -1
    cdef bytes content(self, int page)
