"""Copies between the device, the host tier and the disk: what each holds while it is on its way, what its end changes.

Owns the transfers and the disk map. Works on paths of index nodes; knows nothing about requests, of which a transfer only
carries a number, or about how bytes are copied.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t

import numpy as np

from tsd.cache.fence cimport Fence
from tsd.cache.hashing cimport tsd_key
from tsd.cache.index cimport TIER_DISK, TIER_HOST, Node, PrefixIndex
from tsd.cache.pool cimport PAGE_ACTIVE, PAGE_IN_FLIGHT, PagePool
from tsd.scheduler.transfer cimport Transfer

from tsd.cache.disk_map import DiskMap
from tsd.scheduler.types import Move


cdef bytes key_bytes(tsd_key* key):
    return PyBytes_FromStringAndSize(<char*>key, 16)


cdef class Tiers:
    """Below the device: a host pool (0 pages: none) and a disk of `disk_blocks` (needs the host tier)."""

    def __cinit__(self, PrefixIndex index, int disk_blocks, int threshold):
        self.index = index
        self.device = index.device
        self.host = index.host
        self.disk = DiskMap(disk_blocks if self.host.num_pages else 0)
        self.threshold = threshold
        self.transfers = {}
        self.pending = []
        self.announced = set()

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
        """Has the disk blocks of these keys deleted, and routers told of those that they had been told of."""
        cdef Transfer gone
        if self.announced:
            for key in keys:
                if key in self.announced:
                    self.announced.remove(key)
                    self.index.changes.append((TIER_DISK, False, key, None, b""))
        if keys:
            gone = self.begin("discard", 0)
            gone.keys = keys
            self.ship(gone, np.empty(0, np.int32), np.empty(0, np.int32))
        return 0

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
            key = self.index.key_of(n)
            evicted = self.disk.reserve(key)
            if evicted is None:
                continue
            discard.extend(evicted)
            self.index.pin(n)
            t.nodes[t.count] = n
            t.count += 1
            t.keys.append(key)
            pages.append(self.index.nodes[n].host)
        self.discard(discard)
        if t.count:
            self.ship(t, np.asarray(pages, np.int32), np.full(t.count, -1, np.int32))
        return 0

    cdef int stored(self, Transfer t, bint ok) except -1:
        """A write to the disk landed or failed. Its blocks are announced; those of an earlier process are not: their ids
        are not known."""
        cdef int i
        if ok and self.index.record:
            for i in range(t.count):
                self.index.tell(t.nodes[i], TIER_DISK, True)
                self.announced.add(t.keys[i])
        for i in range(t.count - 1, -1, -1):
            self.disk.stored(t.keys[i], ok)
            self.index.unpin(t.nodes[i])
        return 0

    cdef int prefetch(self, int req, tsd_key* keys, int32_t* matched, int run, int limit) except -1:
        """Starts reading the pages from `run` on that the disk holds into host pages, when there are enough of them.

        Returns how many; 0 starts nothing. `matched` are the nodes of the pages before.
        """
        cdef Transfer t
        cdef int k = run, page
        while k < limit and self.disk.readable(key_bytes(&keys[k])):
            k += 1
        if k - run < max(1, self.threshold):
            return 0
        t = self.begin("prefetch", k - run)
        t.req = req
        t.first = run
        for k in range(run):
            if self.index.nodes[matched[k]].host >= 0:
                self.index.pin(matched[k])
        while t.first + t.count < limit:
            key = key_bytes(&keys[t.first + t.count])
            if not self.disk.readable(key):
                break
            page = self.index.take_host()
            if page < 0:
                break
            self.host.state[page] = PAGE_IN_FLIGHT
            t.pages[t.count] = page
            t.count += 1
            t.keys.append(key)
            self.disk.touch(key)
        for k in range(run - 1, -1, -1):
            if self.index.nodes[matched[k]].host >= 0:
                self.index.unpin(matched[k])
        if t.count == 0:
            return 0
        targets = np.empty(t.count, np.int32)
        for k in range(t.count):
            targets[k] = t.pages[k]
        self.ship(t, np.full(t.count, -1, np.int32), targets)
        return t.count

    cdef int prefetched(self, Transfer t, tsd_key* keys, int32_t* tokens, int good) except -1:
        """The first `good` pages of a prefetch are in the host tier; the rest was missing or rotten: a miss."""
        cdef int i, k, n, parent
        for i in range(t.count):
            k = t.first + i
            if i >= good:
                if i == good:
                    # Whatever is there under this key is not to be trusted again, nor to take room.
                    self.disk.drop(t.keys[i])
                    self.discard([t.keys[i]])
                self.host.give(t.pages[i])
                continue
            n = self.index.find(keys[k], tokens + <size_t>k * self.index.page_size)
            if n < 0:
                parent = -1
                if k:
                    parent = self.index.find(keys[k - 1], tokens + <size_t>(k - 1) * self.index.page_size)
                if k == 0 or parent >= 0:
                    n = self.index.insert_host(parent, keys[k], tokens + <size_t>k * self.index.page_size, t.pages[i])
                    if n >= 0:
                        self.index.tell(n, TIER_HOST, True)
                        continue
            elif self.index.nodes[n].host < 0:
                self.index.set_host(n, t.pages[i])
                self.index.tell(n, TIER_HOST, True)
                continue
            self.host.give(t.pages[i])
        return 0
