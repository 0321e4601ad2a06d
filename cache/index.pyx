"""The prefix index: page key -> node {device page, host page, disk block, parent}, and which node is given up first.

Owns every page that outlives its request. A node is referenced by the requests that use its device page and pinned by
the copies that use its host page. Knows nothing about requests' states or who runs.

Device residency is closed under prefixes: a node with a device page has a parent with one. So one list of the
unreferenced nodes, least recently released first, is enough for leaf-first eviction: a path is released from its end,
hence a node is always older in the list than its ancestors, and the oldest node has no device child.
The host list has no such order (copies land when they land): a node with children in the host tier goes round again.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memset

from tsd.cache.hashing cimport PageHasher, tsd_key
from tsd.cache.pool cimport (
    PAGE_ACTIVE,
    PAGE_CACHED,
    PAGE_FREE,
    PAGE_IN_FLIGHT,
    PAGE_SHARED,
    PagePool,
)

cdef extern from *:
    """
    #define tsd_prefetch(p) __builtin_prefetch(p)
    """
    void tsd_prefetch(const void* p) nogil


class IndexFault(RuntimeError):
    """The index contradicts itself: our bug."""


cdef class PrefixIndex:
    """An index over a device pool, a host pool (of 0 pages when there is no host tier) and a number of disk blocks."""

    def __cinit__(self, int page_size, PagePool device, PagePool host, int disk_blocks=0):
        cdef int i, most = device.num_pages + host.num_pages + disk_blocks
        cdef uint64_t size = 16
        self.page_size = page_size
        self.device = device
        self.host = host
        self.capacity = most + most // 4 + 16
        self.nodes = <Node*>calloc(self.capacity, sizeof(Node))
        self.tokens = <int32_t*>malloc(<size_t>self.capacity * page_size * sizeof(int32_t))
        self.spare = <int32_t*>calloc(self.capacity, sizeof(int32_t))
        while size < <uint64_t>self.capacity * 2:
            size *= 2
        self.mask = size - 1
        self.table = <Bucket*>calloc(size, sizeof(Bucket))
        if self.nodes == NULL or self.tokens == NULL or self.spare == NULL or self.table == NULL:
            raise MemoryError()
        for i in range(self.capacity):
            self.spare[i] = self.capacity - 1 - i
        self.num_spare = self.capacity
        self.dhead = self.dtail = self.hhead = self.htail = -1
        self.changes = []
        # An empty bucket is node 0 of a zeroed table, so nodes are stored plus one.

    def __dealloc__(self):
        free(self.nodes)
        free(self.tokens)
        free(self.spare)
        free(self.table)

    # ---- lookup

    cdef int by_key(self, tsd_key key) noexcept:
        """The node of `key`, whatever its tokens, or -1."""
        cdef uint64_t at = key.lo & self.mask
        while self.table[at].node != 0:
            if self.table[at].tag == key.hi and self.nodes[self.table[at].node - 1].key.lo == key.lo:
                return self.table[at].node - 1
            at = (at + 1) & self.mask
        return -1

    cdef int find(self, int parent, tsd_key key, const int32_t* tokens) noexcept:
        """As `seek`; a loose node learns what it is. `parent` is the node of the page before, or -1."""
        cdef int n = self.seek(key, tokens)
        if n >= 0 and self.nodes[n].used == NODE_LOOSE:
            self.claim(n, parent, tokens)
        return n

    cdef void claim(self, int n, int parent, const int32_t* tokens) noexcept:
        """A loose node's ids and parent are known now."""
        cdef Node* node = &self.nodes[n]
        node.used = NODE_USED
        node.parent = parent
        node.depth = 1
        if parent >= 0:
            self.nodes[parent].children += 1
            node.depth = self.nodes[parent].depth + 1
        memcpy(self.tokens + <size_t>n * self.page_size, tokens, self.page_size * 4)

    cdef int seek(self, tsd_key key, const int32_t* tokens) noexcept:
        """The node of `key` whose page holds exactly `tokens` (a loose one: of that key), or -1."""
        cdef uint64_t at = key.lo & self.mask
        cdef Node* node
        cdef int n
        while self.table[at].node != 0:
            if self.table[at].tag == key.hi:
                n = self.table[at].node - 1
                node = &self.nodes[n]
                if node.key.lo == key.lo and (
                    memcmp(self.tokens + <size_t>n * self.page_size, tokens, self.page_size * 4) == 0
                    or node.used == NODE_LOOSE
                ):
                    return n
            at = (at + 1) & self.mask
        return -1

    cdef int match(self, const tsd_key* keys, const int32_t* tokens, int limit, int32_t* found, int* device_run) noexcept:
        """Walks the chain: how many of the first `limit` pages are in a tier; `device_run` of them on the device."""
        cdef int i, n, device_count = 0
        cdef bint on_device = True
        cdef uint64_t mask = self.mask
        for i in range(min(limit, 12)):
            tsd_prefetch(&self.table[keys[i].lo & mask])
        for i in range(limit):
            if i + 12 < limit:
                tsd_prefetch(&self.table[keys[i + 12].lo & mask])
            if i + 6 < limit:
                n = self.table[keys[i + 6].lo & mask].node
                if n != 0:
                    tsd_prefetch(&self.nodes[n - 1])
                    tsd_prefetch(self.tokens + <size_t>(n - 1) * self.page_size)
            n = self.seek(keys[i], tokens + <size_t>i * self.page_size)
            if n < 0:
                break
            if self.nodes[n].dev >= 0 and on_device:
                device_count += 1
            elif self.nodes[n].host >= 0 or self.nodes[n].dev >= 0:
                on_device = False
            else:
                break
            found[i] = n
        else:
            i = limit
        device_run[0] = device_count
        return i

    # ---- insertion

    cdef int place(self, int parent, tsd_key key, const int32_t* tokens) noexcept:
        """A new node without any page, or -1 when there is no room."""
        cdef int n
        cdef uint64_t at = key.lo & self.mask
        cdef Node* node
        if self.num_spare == 0:
            return -1
        self.num_spare -= 1
        n = self.spare[self.num_spare]
        if n >= self.high:
            self.high = n + 1
        node = &self.nodes[n]
        memset(node, 0, sizeof(Node))
        node.key = key
        node.parent = parent
        node.dev = node.host = node.dprev = node.dnext = node.hprev = node.hnext = -1
        node.used = NODE_USED
        if tokens != NULL:
            memcpy(self.tokens + <size_t>n * self.page_size, tokens, self.page_size * 4)
        node.depth = 1
        if parent >= 0:
            self.nodes[parent].children += 1
            node.depth = self.nodes[parent].depth + 1
        while self.table[at].node != 0:
            at = (at + 1) & self.mask
        self.table[at].tag = key.hi
        self.table[at].node = n + 1
        self.table[at].home = <uint32_t>key.lo
        self.num_nodes += 1
        self.inserts += 1
        return n

    cdef int place_loose(self, tsd_key key) noexcept:
        """A node of which only the key is known, or -1 when there is no room."""
        cdef int n = self.place(-1, key, NULL)
        if n >= 0:
            self.nodes[n].used = NODE_LOOSE
        return n

    cdef int insert(self, int parent, tsd_key key, const int32_t* tokens, int page) except -2:
        """A node with a device page and one reference, the caller's; -1 when there is no room for it."""
        cdef int n = self.place(parent, key, tokens)
        if n >= 0:
            self.nodes[n].refs = 1
            self.adopt(n, page)
        return n

    cdef int insert_host(self, int parent, tsd_key key, const int32_t* tokens, int page) except -2:
        """A node with a host page only, unreferenced; -1 when there is no room for it."""
        cdef int n = self.place(parent, key, tokens)
        if n >= 0:
            self.set_host(n, page)
        return n

    cdef int adopt(self, int n, int page) except -1:
        """The node, referenced and without a device page, takes this one."""
        self.nodes[n].dev = page
        self.device.node[page] = n
        self.settle(n)
        self.tell(n, TIER_DEVICE, True)
        return 0

    # ---- references (device) and pins (host)

    cdef void settle(self, int n) noexcept:
        """Writes the state of the node's device page."""
        cdef Node* node = &self.nodes[n]
        if node.dev < 0:
            return
        if node.copying:
            self.device.state[node.dev] = PAGE_IN_FLIGHT
        elif node.refs == 0:
            self.device.state[node.dev] = PAGE_CACHED
        elif node.refs == 1:
            self.device.state[node.dev] = PAGE_ACTIVE
        else:
            self.device.state[node.dev] = PAGE_SHARED

    cdef void ref(self, int n) noexcept:
        cdef Node* node = &self.nodes[n]
        if node.refs == 0 and node.dev >= 0:
            self.dunlink(n)
        node.refs += 1
        self.settle(n)

    cdef int unref(self, int n) except -1:
        cdef Node* node = &self.nodes[n]
        if node.refs <= 0 or not node.used:
            raise IndexFault(f"node {n} was released more often than it was taken")
        node.refs -= 1
        self.settle(n)
        if node.refs == 0:
            if node.dev >= 0:
                self.dlink(n)
            else:
                self.collect(n)
        return 0

    cdef void pin(self, int n) noexcept:
        """Keeps the host page while a copy reads it."""
        cdef Node* node = &self.nodes[n]
        if node.pins == 0 and node.host >= 0:
            self.hunlink(n)
        node.pins += 1
        if node.host >= 0:
            self.host.state[node.host] = PAGE_IN_FLIGHT

    cdef int unpin(self, int n) except -1:
        cdef Node* node = &self.nodes[n]
        if node.pins <= 0:
            raise IndexFault(f"host page of node {n} was unpinned more often than pinned")
        node.pins -= 1
        if node.pins == 0:
            if node.host >= 0:
                self.host.state[node.host] = PAGE_CACHED
                self.hlink(n)
            else:
                self.collect(n)
        return 0

    cdef int set_host(self, int n, int page) except -1:
        """The node's copy in the host tier landed; the caller tells of it, parents before children."""
        cdef Node* node = &self.nodes[n]
        node.host = page
        self.host.node[page] = n
        if node.parent >= 0:
            self.nodes[node.parent].host_children += 1
        if node.pins == 0:
            self.host.state[page] = PAGE_CACHED
            self.hlink(n)
        else:
            self.host.state[page] = PAGE_IN_FLIGHT
        return 0

    # ---- giving up

    cdef int drop_host(self, int n) except -1:
        cdef Node* node = &self.nodes[n]
        if node.pins == 0:
            self.hunlink(n)
        self.tell(n, TIER_HOST, False)
        self.host.give(node.host)
        node.host = -1
        if node.parent >= 0:
            self.nodes[node.parent].host_children -= 1
        self.collect(n)
        return 0

    cdef int drop_device(self, int n) except -1:
        cdef Node* node = &self.nodes[n]
        if node.refs == 0:
            self.dunlink(n)
        self.device.give(node.dev)
        node.dev = -1
        self.tell(n, TIER_DEVICE, False)
        self.collect(n)
        return 0

    cdef int take_device(self) except -2:
        """A device page: free, or of the least recently used unreferenced node; -1 when every page is in use."""
        cdef int page = self.device.take()
        cdef int n, soon
        if page >= 0 or self.dhead < 0:
            return page
        self.device_evictions += 1
        n = self.dhead
        soon = self.nodes[n].dnext
        if soon >= 0:
            # Evictions come in rows: have the next victims' lines on their way.
            tsd_prefetch(&self.table[self.nodes[soon].key.lo & self.mask])
            if self.nodes[soon].dnext >= 0:
                tsd_prefetch(&self.nodes[self.nodes[soon].dnext])
        self.drop_device(n)
        return self.device.take()

    cdef int take_host(self) except -2:
        """A host page, evicting the coldest node without host children; -1 when every page is pinned."""
        cdef int page = self.host.take()
        cdef int tries, n
        if page >= 0:
            return page
        for tries in range(self.host_evictable):
            n = self.hhead
            if self.nodes[n].host_children == 0:
                self.host_evictions += 1
                self.drop_host(n)
                return self.host.take()
            self.hunlink(n)
            self.hlink(n)
        return -1

    cdef int collect(self, int n) except -1:
        """Forgets the node, and then its ancestors, when nothing is left of them."""
        cdef int parent
        cdef Node* node
        while n >= 0:
            node = &self.nodes[n]
            if node.dev >= 0 or node.host >= 0 or node.disk or node.refs or node.pins or node.children:
                return 0
            parent = node.parent
            self.forget(n)
            if parent >= 0:
                self.nodes[parent].children -= 1
            n = parent
        return 0

    cdef void forget(self, int n) noexcept:
        """Takes the node out of the table: linear probing with backward shift."""
        cdef uint64_t mask = self.mask
        cdef uint64_t at = self.nodes[n].key.lo & mask
        cdef uint64_t hole, home
        while self.table[at].node != n + 1:
            at = (at + 1) & mask
        hole = at
        while True:
            at = (at + 1) & mask
            if self.table[at].node == 0:
                break
            home = self.table[at].home & mask
            if ((at - home) & mask) >= ((at - hole) & mask):
                self.table[hole] = self.table[at]
                hole = at
        self.table[hole].node = 0
        self.nodes[n].used = NODE_FREE
        self.spare[self.num_spare] = n
        self.num_spare += 1
        self.num_nodes -= 1

    # ---- the two lists, coldest at the head

    cdef void dlink(self, int n) noexcept:
        cdef Node* node = &self.nodes[n]
        node.dprev = self.dtail
        node.dnext = -1
        if self.dtail >= 0:
            self.nodes[self.dtail].dnext = n
        else:
            self.dhead = n
        self.dtail = n
        self.evictable += 1

    cdef void dunlink(self, int n) noexcept:
        cdef Node* node = &self.nodes[n]
        if node.dprev >= 0:
            self.nodes[node.dprev].dnext = node.dnext
        else:
            self.dhead = node.dnext
        if node.dnext >= 0:
            self.nodes[node.dnext].dprev = node.dprev
        else:
            self.dtail = node.dprev
        self.evictable -= 1

    cdef void hlink(self, int n) noexcept:
        cdef Node* node = &self.nodes[n]
        node.hprev = self.htail
        node.hnext = -1
        if self.htail >= 0:
            self.nodes[self.htail].hnext = n
        else:
            self.hhead = n
        self.htail = n
        self.host_evictable += 1

    cdef void hunlink(self, int n) noexcept:
        cdef Node* node = &self.nodes[n]
        if node.hprev >= 0:
            self.nodes[node.hprev].hnext = node.hnext
        else:
            self.hhead = node.hnext
        if node.hnext >= 0:
            self.nodes[node.hnext].hprev = node.hprev
        else:
            self.htail = node.hprev
        self.host_evictable -= 1

    # ---- operators and tests

    cdef int tell(self, int n, int tier, bint stored) except -1:
        """Records for routers that the node's page came to a tier, or went (`cache.events.Change`)."""
        if not self.record:
            return 0
        if stored:
            self.changes.append((tier, True, self.key_of(n), self.parent_key(n), self.tokens_of(n)))
        else:
            self.changes.append((tier, False, self.key_of(n), None, b""))
        return 0

    cdef bytes key_of(self, int n):
        return PyBytes_FromStringAndSize(<char*>&self.nodes[n].key, 16)

    cdef object parent_key(self, int n):
        return None if self.nodes[n].parent < 0 else self.key_of(self.nodes[n].parent)

    cdef bytes tokens_of(self, int n):
        """The page's ids as raw int32."""
        return PyBytes_FromStringAndSize(<char*>(self.tokens + <size_t>n * self.page_size), self.page_size * 4)

    def flush(self) -> int:
        """Gives up every page nobody uses; returns how many device and host pages that were."""
        cdef int count = 0
        cdef int left
        while self.dhead >= 0:
            self.drop_device(self.dhead)
            count += 1
        left = self.host_evictable
        while left > 0 and self.hhead >= 0:
            self.drop_host(self.hhead)
            count += 1
            left -= 1
        return count

    def integrity(self, bint thorough=True) -> None:
        """Raises IndexFault on any contradiction. O(the most nodes there ever were)."""
        cdef int i, n, count = 0, steps = 0
        cdef int32_t* children = <int32_t*>calloc(self.high + 1, sizeof(int32_t))
        cdef int32_t* hosts = <int32_t*>calloc(self.high + 1, sizeof(int32_t))
        cdef Node* node
        try:
            for i in range(self.high):
                node = &self.nodes[i]
                if not node.used:
                    continue
                count += 1
                if not (node.dev >= 0 or node.host >= 0 or node.disk or node.refs or node.pins or node.children):
                    raise IndexFault(f"node {i} stands for nothing")
                if node.used == NODE_LOOSE and (node.parent >= 0 or node.dev >= 0 or node.host >= 0 or node.children):
                    raise IndexFault(f"node {i} has relatives or pages and is not known")
                if thorough and self.seek(node.key, self.tokens + <size_t>i * self.page_size) != i:
                    raise IndexFault(f"node {i} cannot be found by its key")
                if node.parent >= 0:
                    if not self.nodes[node.parent].used:
                        raise IndexFault(f"node {i} outlived its parent {node.parent}")
                    children[node.parent] += 1
                    if node.host >= 0:
                        hosts[node.parent] += 1
                    if node.dev >= 0 and self.nodes[node.parent].dev < 0:
                        raise IndexFault(f"node {i} is on the device, its parent {node.parent} is not")
                    if node.refs > 0 and self.nodes[node.parent].refs == 0:
                        raise IndexFault(f"node {i} is referenced, its parent {node.parent} is not")
                if node.refs < 0 or node.pins < 0:
                    raise IndexFault(f"node {i} has a negative count")
                if node.dev >= 0 and (self.device.node[node.dev] != i or self.device.state[node.dev] == PAGE_FREE):
                    raise IndexFault(f"device page {node.dev} does not belong to its node {i}")
                if node.host >= 0 and (self.host.node[node.host] != i or self.host.state[node.host] == PAGE_FREE):
                    raise IndexFault(f"host page {node.host} does not belong to its node {i}")
            for i in range(self.high):
                if self.nodes[i].used and children[i] != self.nodes[i].children:
                    raise IndexFault(f"node {i} counts {self.nodes[i].children} children and has {children[i]}")
                if self.nodes[i].used and hosts[i] != self.nodes[i].host_children:
                    raise IndexFault(f"node {i} counts {self.nodes[i].host_children} host children, has {hosts[i]}")
            if count != self.num_nodes:
                raise IndexFault(f"{count} nodes are in use, {self.num_nodes} counted")
            n = self.dhead
            while n >= 0:
                if self.nodes[n].refs or self.nodes[n].dev < 0 or steps > self.capacity:
                    raise IndexFault(f"node {n} is on the eviction list wrongly")
                steps += 1
                n = self.nodes[n].dnext
            if steps != self.evictable:
                raise IndexFault(f"{steps} nodes are evictable, {self.evictable} counted")
            steps = 0
            n = self.hhead
            while n >= 0:
                if self.nodes[n].pins or self.nodes[n].host < 0 or steps > self.capacity:
                    raise IndexFault(f"node {n} is on the host eviction list wrongly")
                steps += 1
                n = self.nodes[n].hnext
            if steps != self.host_evictable:
                raise IndexFault(f"{steps} host pages are evictable, {self.host_evictable} counted")
        finally:
            free(children)
            free(hosts)
