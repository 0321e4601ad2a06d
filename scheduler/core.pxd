from libc.stdint cimport int32_t, int64_t

from tsd.cache.fence cimport Fence
from tsd.cache.hashing cimport PageHasher
from tsd.cache.index cimport PrefixIndex
from tsd.cache.pool cimport PagePool
from tsd.scheduler.pacing cimport Pace
from tsd.scheduler.plan cimport Build
from tsd.scheduler.requests cimport Req, Requests
from tsd.scheduler.tiers cimport Tiers
from tsd.scheduler.transfer cimport Transfer
from tsd.scheduler.withheld cimport Withheld


cdef class Scheduler:
    cdef readonly object config
    cdef readonly object journal
    cdef int page_size, max_slots, max_pages, chunk, mixed_chunk, max_flights, window, retract_every, room_to_grow
    cdef bint mixed, caching, last_was_prefill, sharing
    cdef int64_t told_evictions
    cdef double told_at
    # what the cache owns
    cdef PagePool pool
    cdef PagePool host
    cdef PrefixIndex index
    cdef PageHasher hasher
    cdef Fence fence
    cdef Tiers tiers
    cdef Withheld withheld
    # requests
    cdef Requests requests
    cdef dict by_id
    cdef list finished
    cdef double soonest, ageing
    # slots: page tables, their nodes, and the step a table last changed in
    cdef int32_t* free_slots
    cdef int num_free_slots
    cdef int32_t* table
    cdef int32_t* nodes
    cdef int64_t* delta_step
    cdef int32_t* scratch
    # who is where
    cdef int32_t* running
    cdef int num_running
    cdef int32_t* filling
    cdef int num_filling
    cdef int leaving
    cdef int fetching
    # plans
    cdef Pace pace
    cdef list ring
    cdef int ring_at, num_flights
    cdef int64_t step
    # counters
    cdef int64_t c_steps, c_submitted, c_prompt, c_cached, c_generated, c_retractions, c_aborts, c_refusals, c_errors
    cdef int64_t c_finished, c_queries, c_hit_device, c_hit_host, c_hit_disk, c_dropped
    cdef int drop(self, int32_t* array, int size, int at) except -1
