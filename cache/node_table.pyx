"""The nodes of the prefix index and the table that finds them: page key -> node {parent, pages, counts, a page's ids}.

Open addressing with linear probing. Owns records and ids; knows nothing about who uses a node or why it goes.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memset

from tsd.cache.hashing cimport tsd_key


class IndexFault(RuntimeError):
    """The index contradicts itself: our bug."""


cdef class NodeTable:
    """`make_room` first."""

    cdef int make_room(self, int page_size, int capacity) except -1:
        cdef uint64_t size = 16
        cdef int i
        self.page_size = page_size
        self.capacity = capacity
        self.nodes = <Node*>calloc(self.capacity, sizeof(Node))
        self.tokens = <int32_t*>malloc(<size_t>self.capacity * page_size * sizeof(int32_t))
        self.spare = <int32_t*>calloc(self.capacity, sizeof(int32_t))
        while size < <uint64_t>self.capacity * 2:
            size *= 2
        self.mask = size - 1
        # An empty bucket is node 0 of a zeroed table, so nodes are stored plus one.
        self.table = <Bucket*>calloc(size, sizeof(Bucket))
        if self.nodes == NULL or self.tokens == NULL or self.spare == NULL or self.table == NULL:
            raise MemoryError()
        for i in range(self.capacity):
            self.spare[i] = self.capacity - 1 - i
        self.num_spare = self.capacity
        return 0

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

    # ---- nodes come and go

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

    # ---- what a node stands for

    cdef bytes key_of(self, int n):
        return PyBytes_FromStringAndSize(<char*>&self.nodes[n].key, 16)

    cdef object parent_key(self, int n):
        return None if self.nodes[n].parent < 0 else self.key_of(self.nodes[n].parent)

    cdef bytes tokens_of(self, int n):
        """The page's ids as raw int32."""
        return PyBytes_FromStringAndSize(<char*>(self.tokens + <size_t>n * self.page_size), self.page_size * 4)
