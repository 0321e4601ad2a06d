"""The pages that requests hold: taken, written into their tables, indexed when their KV has landed, given up.

Knows nothing about who runs, or why a request holds or leaves its pages.
"""

from libc.stdint cimport int32_t

from tsd.scheduler.core cimport Scheduler
from tsd.scheduler.plan cimport Build
from tsd.scheduler.requests cimport Req
from tsd.scheduler.transfer cimport Transfer


cdef int take_page(Scheduler s) except -2:
    """A device page for one owner, cleaned by the next plan when a failed row left it; -1 when there is none."""
    cdef int page = s.index.take_device()
    if page >= 0 and s.pool.dirty[page]:
        (<Build>s.ring[s.ring_at]).add_zero(page)
        s.pool.dirty[page] = 0
    return page


cdef int set_page(Scheduler s, Req* r, int k, int page) except -1:
    """Logical page k of the request is now `page`; the next plan tells the executor."""
    s.table[<size_t>r.slot * s.max_pages + k] = page
    (<Build>s.ring[s.ring_at]).add_delta(r.slot, k, page)
    s.delta_step[r.slot] = s.step
    return 0


cdef int release(Scheduler s, Req* r) except -1:
    """Gives up the slot, the private pages and the references, deepest first."""
    cdef int32_t* pages
    cdef int32_t* nodes
    cdef int k
    cdef Build build
    if r.slot < 0:
        return 0
    pages = s.table + <size_t>r.slot * s.max_pages
    nodes = s.nodes + <size_t>r.slot * s.max_pages
    for k in range(r.num_pages - 1, r.num_nodes - 1, -1):
        if r.poisoned:
            s.pool.dirty[pages[k]] = 1
        s.pool.give(pages[k])
    for k in range(r.num_nodes - 1, -1, -1):
        s.index.unref(nodes[k])
    r.num_pages = r.num_nodes = 0
    build = <Build>s.ring[s.ring_at]
    if s.delta_step[r.slot] == s.step:
        build.drop_deltas(r.slot)
    if r.announced:
        build.add_released(r.slot)
    s.free_slots[s.num_free_slots] = r.slot
    s.num_free_slots += 1
    r.slot = -1
    r.announced = 0
    return 0


cdef int publish(Scheduler s, Req* r) except -1:
    """Indexes the pages whose KV has landed. A page that someone indexed first is used instead of our copy."""
    cdef int full = r.landed // s.page_size
    cdef size_t base = <size_t>r.slot * s.max_pages
    cdef int k, n, page
    cdef int32_t* tokens
    if not s.caching or r.private_rest or r.num_nodes >= full:
        return 0
    s.requests.extend_keys(r, full)
    for k in range(r.num_nodes, full):
        tokens = r.tokens + <size_t>k * s.page_size
        page = s.table[base + k]
        n = s.index.find(s.nodes[base + k - 1] if k else -1, r.keys[k], tokens)
        if n < 0:
            n = s.index.insert(s.nodes[base + k - 1] if k else -1, r.keys[k], tokens, page)
            if n < 0:
                r.private_rest = 1
                return 0
        else:
            s.index.ref(n)
            if s.index.nodes[n].dev < 0:
                s.index.adopt(n, page)
            else:
                set_page(s, r, k, s.index.nodes[n].dev)
                if s.num_flights:
                    s.fence.add(page, s.step - 1)
                else:
                    s.pool.give(page)
        s.nodes[base + k] = n
        r.num_nodes = k + 1
    return 0


cdef Transfer keep(Scheduler s, Req* r):
    """Starts the copy of the request's indexed pages to the host tier; None when there is nothing to copy."""
    if r.poisoned or r.num_nodes == 0:
        return None
    return s.tiers.write_back(s.nodes + <size_t>r.slot * s.max_pages, r.num_nodes)
