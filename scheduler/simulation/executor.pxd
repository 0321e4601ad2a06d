from libc.stdint cimport int32_t, int64_t, uint8_t

from tsd.scheduler.simulation.dice cimport Dice
from tsd.scheduler.simulation.oracle cimport Oracle


cdef class Flight:
    cdef int64_t step
    cdef int rows
    cdef int32_t* tokens
    cdef int64_t* ids
    cdef uint8_t* samples
    cdef int32_t* pages
    cdef int num_pages
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
    cdef readonly list flights
    cdef list spare
    cdef int change_tables(self, object plan) except -1
    cdef int admit(self, object admission) except -1
    cdef int run(self, object plan) except -1
    cdef int run_row(
        self, Flight flight, int row, int slot, int start, int count, int32_t* ids, bint sample
    ) except -1
    cdef int sample(self, Flight flight, int row, int slot, int end) except -1
    cdef Flight land(self)
    cdef tuple fail_a_row(self, Flight flight, Dice dice)
    cdef int spoil(self, Flight flight, int row) except -1
    cdef int deliver(self, Flight flight, object outcome) except -1
    cdef int check_ends(self, object outcome) except -1
    cdef bytes content(self, int page)
