"""The full check of the scheduler's books: everything is counted again from the records and compared. O(pages).

Callable in production; the simulator calls it after every step. Changes nothing.
"""

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free

from tsd.cache.node_table cimport Node
from tsd.scheduler.core cimport Scheduler
from tsd.scheduler.requests cimport (
    S_ABORTING,
    S_BOOTSTRAPPING,
    S_DECODING,
    S_DRAINING,
    S_PREFETCHING,
    S_PREFILLED,
    S_PREFILLING,
    S_RETRACTED,
    S_RETRACTING,
    S_SUBMITTED,
    Req,
)
from tsd.scheduler.transfer cimport Transfer

from tsd.scheduler.core import SchedulerFault


cdef class Audit:
    """Counters of one integrity check: owners of each page and slot, users of each node."""

    cdef int32_t* pages
    cdef int32_t* hosts
    cdef int32_t* refs
    cdef int32_t* pins
    cdef int32_t* slots

    def __cinit__(self, int pages, int hosts, int nodes, int slots):
        self.pages = <int32_t*>calloc(pages + 1, sizeof(int32_t))
        self.hosts = <int32_t*>calloc(hosts + 1, sizeof(int32_t))
        self.refs = <int32_t*>calloc(nodes + 1, sizeof(int32_t))
        self.pins = <int32_t*>calloc(nodes + 1, sizeof(int32_t))
        self.slots = <int32_t*>calloc(slots + 1, sizeof(int32_t))
        if self.pages == NULL or self.hosts == NULL or self.refs == NULL or self.pins == NULL or self.slots == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self.pages)
        free(self.hosts)
        free(self.refs)
        free(self.pins)
        free(self.slots)


def audit(Scheduler s, bint thorough=True) -> None:
    """Raises SchedulerFault, PoolError or IndexFault at the first contradiction."""
    cdef Audit books = Audit(s.pool.num_pages, s.host.num_pages, s.index.high, s.max_slots)
    s.pool.integrity()
    s.host.integrity()
    s.index.integrity(thorough)
    if thorough:
        s.tiers.disk.integrity()
    audit_requests(s, books)
    audit_transfers(s, books)
    audit_pages(s, books)


cdef int audit_requests(Scheduler s, Audit books) except -1:
    """Slots, lists and what each request holds."""
    cdef int i, k, n, live = 0, leaving = 0, fetching = 0, running = 0, filling = 0, waiting = 0, retracted = 0
    cdef int64_t queued = 0
    cdef size_t base
    cdef Req* r
    for i in range(s.num_free_slots):
        books.slots[s.free_slots[i]] += 1
    for i in range(s.requests.capacity):
        r = &s.requests.R[i]
        if r.tokens == NULL:
            continue
        live += 1
        leaving += r.state == S_DRAINING or r.state == S_ABORTING or r.state == S_RETRACTING
        fetching += r.state == S_PREFETCHING and r.slot >= 0
        running += r.state == S_PREFILLED or r.state == S_DECODING
        filling += r.state == S_BOOTSTRAPPING or r.state == S_PREFILLING
        retracted += r.state == S_RETRACTED
        if r.state == S_SUBMITTED or (r.state == S_PREFETCHING and r.slot < 0):
            waiting += 1
            queued += r.num_prompt
        if r.slot < 0:
            if r.num_pages or r.num_nodes or r.flights:
                raise SchedulerFault(f"request {r.id} holds pages or steps without a slot")
            continue
        books.slots[r.slot] += 1
        base = <size_t>r.slot * s.max_pages
        for k in range(r.num_pages):
            n = s.nodes[base + k]
            if k >= r.num_nodes:
                books.pages[s.table[base + k]] += 1
            elif s.index.nodes[n].dev != s.table[base + k]:
                if not s.index.nodes[n].loading:
                    raise SchedulerFault(f"request {r.id} page {k} is not its node's page")
                books.pages[s.table[base + k]] += 1
            if k < r.num_nodes:
                books.refs[n] += 1
    for i in range(s.max_slots):
        if books.slots[i] != 1:
            raise SchedulerFault(f"slot {i} has {books.slots[i]} owners")
    for text, found, counted in (
        ("leaving", leaving, s.leaving),
        ("fetching", fetching, s.fetching),
        ("running", running, s.num_running),
        ("filling", filling, s.num_filling),
        ("waiting", waiting, s.requests.num_waiting),
        ("retracted", retracted, s.requests.num_retracted),
        ("queued tokens", queued, s.requests.waiting_tokens),
        ("live", live, s.requests.capacity - s.requests.num_spare),
    ):
        if found != counted:
            raise SchedulerFault(f"{text}: {found} found, {counted} counted")
    return 0


cdef int audit_transfers(Scheduler s, Audit books) except -1:
    """What the copies on their way hold."""
    cdef Transfer t
    cdef int i
    for t in s.tiers.transfers.values():
        for i in range(t.count):
            if t.kind == "write_back":
                books.refs[t.nodes[i]] += 1
                if t.pages[i] >= 0:
                    books.hosts[t.pages[i]] += 1
            elif t.kind == "prefetch":
                books.hosts[t.pages[i]] += 1
            elif t.kind == "load_back" or t.kind == "store":
                books.pins[t.nodes[i]] += 1
    return 0


cdef int audit_pages(Scheduler s, Audit books) except -1:
    """One owner a page, in both tiers; references and pins as counted."""
    cdef int i
    cdef Node* node
    for i in range(s.fence.count):
        books.pages[s.fence.pages[(s.fence.head + i) % s.fence.capacity]] += 1
    for i in range(s.pool.num_free):
        books.pages[s.pool.stack[i]] += 1
    for i in range(s.host.num_free):
        books.hosts[s.host.stack[i]] += 1
    for i in range(s.withheld.num_device):
        books.pages[s.withheld.device[i]] += 1
    for i in range(s.withheld.num_host):
        books.hosts[s.withheld.host[i]] += 1
    for i in range(s.index.high):
        node = &s.index.nodes[i]
        if not node.used:
            continue
        if books.refs[i] != node.refs or books.pins[i] != node.pins:
            raise SchedulerFault(
                f"node {i} has {books.refs[i]} users and {books.pins[i]} copies, counts {node.refs} and {node.pins}"
            )
        if node.dev >= 0:
            books.pages[node.dev] += 1
        if node.host >= 0:
            books.hosts[node.host] += 1
    for i in range(s.pool.num_pages):
        if books.pages[i] != 1:
            raise SchedulerFault(f"device page {i} has {books.pages[i]} owners")
    for i in range(s.host.num_pages):
        if books.hosts[i] != 1:
            raise SchedulerFault(f"host page {i} has {books.hosts[i]} owners")
    return 0
