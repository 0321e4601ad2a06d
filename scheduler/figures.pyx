"""The control plane in numbers: cumulative counts and the state of its pools. Single requests are `view`'s."""

from libc.stdint cimport int64_t

from tsd.scheduler.core cimport Scheduler


cdef int tell_evictions(Scheduler s, double now) except -1:
    """One event for all evictions since the last one."""
    cdef int64_t count = s.index.device_evictions - s.told_evictions
    s.journal.event(now, "eviction", -1, "pages", f"{count} cached pages given up for new ones")
    s.told_evictions = s.index.device_evictions
    s.told_at = now
    return 0


cdef dict snapshot_of(Scheduler s):
    """Counts and states of the control plane, in under 2 ms for a million pages; single requests are `view`'s."""
    width, states = s.pool.bins()
    pages = {"total": s.pool.num_pages, **s.pool.count()}
    host = {"total": s.host.num_pages, **s.host.count()} if s.host.num_pages else None
    disk = None
    if s.tiers.disk.capacity:
        disk = {
            "total": s.tiers.disk.capacity,
            "free": s.tiers.disk.capacity - s.tiers.disk.used,
            "cached": s.tiers.disk.used - s.tiers.disk.storing,
            "in_flight": s.tiers.disk.storing,
        }
    return {
        "step": s.step,
        "page_size": s.page_size,
        "running": s.max_slots - s.num_free_slots,
        "waiting": s.requests.num_waiting,
        "retracted": s.requests.num_retracted,
        "prefetching": s.fetching,
        "counters": counters_of(s),
        "tiers": {"device": pages, "host": host, "disk": disk},
        "hits": {
            "queries": s.c_queries,
            "device": s.c_hit_device,
            "host": s.c_hit_host,
            "disk": s.c_hit_disk,
        },
        "page_map": {"bin_pages": width, "states": states},
    }


cdef dict counters_of(Scheduler s):
    """Cumulative counts."""
    return {
        "steps": s.c_steps,
        "requests": s.c_submitted,
        "finished": s.c_finished,
        "prompt_tokens": s.c_prompt,
        "cached_tokens": s.c_cached,
        "generation_tokens": s.c_generated,
        "dropped_tokens": s.c_dropped,
        "held_steps": s.pace.c_held,
        "retractions": s.c_retractions,
        "evictions": s.index.device_evictions,
        "host_evictions": s.index.host_evictions,
        "aborts": s.c_aborts,
        "refusals": s.c_refusals,
        "errors": s.c_errors,
        "hit_queries": s.c_queries,
        "hit_device": s.c_hit_device,
        "hit_host": s.c_hit_host,
        "hit_disk": s.c_hit_disk,
    }
