"""Copies between the device, the host tier and the disk: what each holds while it is on its way, what its end changes.

Owns the transfers and which blocks are on disk. Works on paths of index nodes; knows nothing about requests, of which a transfer only
carries a number, or about how bytes are copied.
"""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int32_t, int64_t

import numpy as np

from tsd.cache.disk_map cimport DiskMap
from tsd.cache.fence cimport Fence
from tsd.cache.hashing cimport tsd_key
from tsd.cache.index cimport TIER_HOST, PrefixIndex
from tsd.cache.node_table cimport Node
from tsd.cache.pool cimport PAGE_ACTIVE, PAGE_IN_FLIGHT, PagePool
from tsd.scheduler.transfer cimport Transfer

from tsd.scheduler.types import Move


cdef class Tiers:
    """Below the device: a host pool (0 pages: none) and a disk of `disk_blocks` (needs the host tier)."""

    def __cinit__(self, PrefixIndex index, int disk_blocks, int threshold):
        self.index = index
        self.device = index.device
        self.host = index.host
        self.disk = DiskMap(index, disk_blocks if self.host.num_pages else 0)
        self.threshold = threshold
        self.transfers = {}
        self.pending = []

    cdef Transfer begin(self, str kind, int size):
        """A new transfer; `ship` puts it into the next plan."""
        cdef Transfer found = Transfer(self.next_move, kind, size)
        self.next_move += 1
        return found

    cdef int ship(self, Transfer t, object sources, object targets) except -1:
        self.transfers[t.move_id] = t
        self.pending.append(Move(t.move_id, t.kind, sources, targets, t.keys))
        return 0

    cdef int discard(self, list keys) except -1:
        """Has the disk blocks of these keys deleted."""
        cdef Transfer gone
        if keys:
            gone = self.begin("discard", 0)
            gone.keys = keys
            self.ship(gone, np.empty(0, np.int32), np.empty(0, np.int32))
        return 0

    cdef int adopt(self, list keys) except -1:
        """Takes in blocks that the disk held before, the last used first; those without room are discarded. How many."""
        cdef list rest = []
        if self.disk.capacity:
            for key in keys:
                if not self.disk.adopt((<tsd_key*>PyBytes_AS_STRING(key))[0]):
                    rest.append(key)
            self.discard(rest)
        return self.disk.used

    cdef int load_back(self, int req, int32_t* nodes, int32_t* pages, int first, int count) except -1:
        """Copies the host pages of nodes [first, first + count), referenced and pinned, to device pages the request owns."""
        cdef Transfer t = self.begin("load_back", count)
        cdef int i, n
        sources = np.empty(count, np.int32)
        targets = np.empty(count, np.int32)
        t.req = req
        t.first = first
        t.count = count
        for i in range(count):
            n = nodes[first + i]
            t.nodes[i] = n
            t.pages[i] = pages[first + i]
            self.index.nodes[n].loading = 1
            self.device.state[t.pages[i]] = PAGE_IN_FLIGHT
            sources[i] = self.index.nodes[n].host
            targets[i] = t.pages[i]
            t.keys.append(self.index.key_of(n))
        self.device_moves += 1
        self.ship(t, sources, targets)
        return 0

    cdef int loaded(self, Transfer t, bint ok, Fence fence, int64_t step) except -1:
        """A load-back landed: its nodes have device pages (perhaps not the target: someone computed the page meanwhile).

        A target that is not needed after all is freed when `step` has landed, which may read it (-1: none does).
        Failed: the targets are the request's private pages, its references to these nodes are gone, and the host copies
        are not trusted again.
        """
        cdef int i, n
        cdef Node* node
        self.device_moves -= 1
        for i in range(t.count):
            n = t.nodes[i]
            node = &self.index.nodes[n]
            node.loading = 0
            if not ok:
                self.device.state[t.pages[i]] = PAGE_ACTIVE
                continue
            if node.dev < 0:
                self.index.adopt(n, t.pages[i])
            elif step >= 0:
                fence.add(t.pages[i], step)
            else:
                self.device.give(t.pages[i])
        for i in range(t.count - 1, -1, -1):
            self.index.unpin(t.nodes[i])
        if not ok:
            for i in range(t.count - 1, -1, -1):
                n = t.nodes[i]
                if self.index.nodes[n].dev >= 0 or self.index.nodes[n].refs > 1:
                    self.index.unref(n)
                    continue
                if self.index.nodes[n].pins == 0 and self.index.nodes[n].host >= 0:
                    self.index.drop_host(n)
                self.index.unref(n)
        return 0

    cdef Transfer write_back(self, int32_t* nodes, int num_nodes):
        """Starts copying the pages of a path that the host tier lacks; the transfer takes its own references."""
        cdef int k, n, page, deepest = -1
        cdef Transfer t
        cdef Node* node
        cdef list sources = [], targets = []
        if self.host.num_pages == 0:
            return None
        for k in range(num_nodes):
            node = &self.index.nodes[nodes[k]]
            if node.host < 0 and not node.copying:
                deepest = k
        if deepest < 0:
            return None
        # The path's own host copies must not be what makes room for the rest of it.
        for k in range(num_nodes):
            if self.index.nodes[nodes[k]].host >= 0:
                self.index.pin(nodes[k])
        t = self.begin("write_back", deepest + 1)
        for k in range(deepest + 1):
            n = nodes[k]
            node = &self.index.nodes[n]
            t.nodes[k] = n
            t.pages[k] = -1
            t.count = k + 1
            if node.host >= 0 or node.copying:
                continue
            page = self.index.take_host()
            if page < 0:
                break
            self.host.state[page] = PAGE_IN_FLIGHT
            t.pages[k] = page
            sources.append(node.dev)
            targets.append(page)
            t.keys.append(self.index.key_of(n))
        for k in range(num_nodes - 1, -1, -1):
            if self.index.nodes[nodes[k]].host >= 0:
                self.index.unpin(nodes[k])
        if not sources:
            return None
        # References on the whole path: a node never outlives its parent on the device.
        for k in range(t.count):
            if t.pages[k] >= 0:
                self.index.nodes[t.nodes[k]].copying = 1
            self.index.ref(t.nodes[k])
        self.device_moves += 1
        self.ship(t, np.array(sources, np.int32), np.array(targets, np.int32))
        return t

    cdef int written(self, Transfer t, bint ok) except -1:
        """A write-back landed or failed."""
        cdef int i, n
        cdef Node* node
        self.device_moves -= 1
        for i in range(t.count - 1, -1, -1):
            if t.pages[i] < 0:
                continue
            n = t.nodes[i]
            node = &self.index.nodes[n]
            node.copying = 0
            if ok and node.host < 0:
                self.index.set_host(n, t.pages[i])
            else:
                self.host.give(t.pages[i])
                t.pages[i] = -1
        for i in range(t.count):
            if t.pages[i] >= 0:
                self.index.tell(t.nodes[i], TIER_HOST, True)
        if ok and self.disk.capacity:
            self.store(t)
        for i in range(t.count - 1, -1, -1):
            self.index.unref(t.nodes[i])
        return 0

    cdef int store(self, Transfer source) except -1:
        """Starts writing to disk the pages that just reached the host tier; discards what the disk has no room for."""
        cdef Transfer t = self.begin("store", source.count)
        cdef int i, n
        cdef list pages = [], discard = []
        for i in range(source.count):
            n = source.nodes[i]
            if source.pages[i] < 0 or self.index.nodes[n].host < 0:
                continue
            evicted = self.disk.reserve(n)
            if evicted is None:
                continue
            discard.extend(evicted)
            self.index.pin(n)
            t.nodes[t.count] = n
            t.count += 1
            t.keys.append(self.index.key_of(n))
            pages.append(self.index.nodes[n].host)
        for i in range(t.count - 1, -1, -1):
            self.disk.touch(t.nodes[i])
        self.discard(discard)
        if t.count:
            self.ship(t, np.asarray(pages, np.int32), np.full(t.count, -1, np.int32))
        return 0

    cdef int stored(self, Transfer t, bint ok) except -1:
        cdef int i
        for i in range(t.count):
            self.disk.stored(t.nodes[i], ok)
        for i in range(t.count - 1, -1, -1):
            self.index.unpin(t.nodes[i])
        return 0

    cdef int prefetch(self, int req, tsd_key* keys, int32_t* tokens, int32_t* chain, int run, int limit) except -1:
        """Starts reading the pages from `run` on that the disk holds into host pages, when there are enough of them.

        Returns how many; 0 starts nothing. `chain` are the nodes of the pages before, with room for `limit`.
        """
        cdef Transfer t
        cdef int k = run, page
        while k < limit:
            chain[k] = self.index.find(chain[k - 1] if k else -1, keys[k], tokens + <size_t>k * self.index.page_size)
            if chain[k] < 0 or not self.disk.readable(chain[k]):
                break
            k += 1
        limit = k
        if limit - run < max(1, self.threshold):
            return 0
        t = self.begin("prefetch", limit - run)
        t.req = req
        t.first = run
        for k in range(run):
            if self.index.nodes[chain[k]].host >= 0:
                self.index.pin(chain[k])
        while t.first + t.count < limit:
            page = self.index.take_host()
            if page < 0:
                break
            self.host.state[page] = PAGE_IN_FLIGHT
            t.pages[t.count] = page
            t.keys.append(self.index.key_of(chain[t.first + t.count]))
            t.count += 1
        for k in range(run - 1, -1, -1):
            if self.index.nodes[chain[k]].host >= 0:
                self.index.unpin(chain[k])
        # The deepest first, so that a block is given up before those without which it is of no use.
        for k in range(run + t.count - 1, run - 1, -1):
            self.disk.touch(chain[k])
        if t.count == 0:
            return 0
        targets = np.empty(t.count, np.int32)
        for k in range(t.count):
            targets[k] = t.pages[k]
        self.ship(t, np.full(t.count, -1, np.int32), targets)
        return t.count

    cdef int prefetched(self, Transfer t, tsd_key* keys, int32_t* tokens, int good) except -1:
        """The first `good` pages of a prefetch are in the host tier; the rest was missing or rotten: a miss."""
        cdef int i, k, n, parent = -1
        cdef int32_t* ids
        if t.first:
            parent = self.index.seek(keys[t.first - 1], tokens + <size_t>(t.first - 1) * self.index.page_size)
        for i in range(t.count):
            k = t.first + i
            if i == good:
                # Whatever is there under this key is not to be trusted again, nor to take room.
                n = self.index.by_key(keys[k])
                if n >= 0 and self.disk.readable(n):
                    self.disk.drop(n)
                self.discard([t.keys[i]])
            n = -1
            if i < good and (k == 0 or parent >= 0):
                ids = tokens + <size_t>k * self.index.page_size
                n = self.index.find(parent, keys[k], ids)
                if n < 0:
                    n = self.index.insert_host(parent, keys[k], ids, t.pages[i])
                    if n >= 0:
                        t.pages[i] = -1
                elif self.index.nodes[n].host < 0:
                    self.index.set_host(n, t.pages[i])
                    t.pages[i] = -1
            if t.pages[i] >= 0:
                self.host.give(t.pages[i])
            else:
                self.index.tell(n, TIER_HOST, True)
            parent = n
        return 0
