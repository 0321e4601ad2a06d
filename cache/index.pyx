"""The prefix index: which node has its page where, who holds it there, and which is given up first.

Owns every page that outlives its request; the nodes themselves and how they are found are `node_table`'s. A node is referenced by the requests that use its device page and pinned by
the copies that use its host page. Knows nothing about requests' states or who runs.

Device residency is closed under prefixes: a node with a device page has a parent with one. So one list of the
unreferenced nodes, least recently released first, is enough for leaf-first eviction: a path is released from its end,
hence a node is always older in the list than its ancestors, and the oldest node has no device child.
The host list has no such order (copies land when they land): a node with children in the host tier goes round again.
"""

from libc.stdint cimport int32_t

from tsd.cache.hashing cimport tsd_key
from tsd.cache.node_table cimport Node, NodeTable, tsd_prefetch
from tsd.cache.pool cimport PAGE_ACTIVE, PAGE_CACHED, PAGE_IN_FLIGHT, PAGE_SHARED, PagePool

from tsd.cache.node_table import IndexFault


cdef class PrefixIndex(NodeTable):
    """An index over a device pool, a host pool (of 0 pages when there is no host tier) and a number of disk blocks."""

    def __cinit__(self, int page_size, PagePool device, PagePool host, int disk_blocks=0):
        cdef int most = device.num_pages + host.num_pages + disk_blocks
        self.make_room(page_size, most + most // 4 + 16)
        self.device = device
        self.host = host
        self.dhead = self.dtail = self.hhead = self.htail = -1
        self.changes = []

    # ---- insertion

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
        from tsd.cache.index_audit import audit

        audit(self, thorough)
