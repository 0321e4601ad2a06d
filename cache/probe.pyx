"""The index and the pool one level below the scheduler: timed loops for the microbenchmark, a handle for the tests.

Owns nothing. Uses only what the scheduler uses.
"""

import time

cimport numpy as cnp
from libc.stdint cimport int32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

import numpy as np

from tsd.cache.disk_map cimport DiskMap
from tsd.cache.hashing cimport PageHasher, tsd_key
from tsd.cache.index cimport PrefixIndex
from tsd.cache.pool cimport PagePool

cnp.import_array()


def match_and_evict(PageHasher hasher, PagePool pool, int pages, int rounds) -> dict:
    """Nanoseconds a page to hash, to match a chain of `pages` pages with tokens compared, and to allocate (which evicts),
    index, release and so free one in a full pool."""
    cdef PrefixIndex index = PrefixIndex(hasher.page_size, pool, PagePool(0))
    cdef int size = hasher.page_size, k, n, parent, i, run = 0, chains, c
    cdef cnp.ndarray tokens
    cdef int32_t* ids
    cdef tsd_key* keys = <tsd_key*>malloc(pages * sizeof(tsd_key))
    cdef int32_t* nodes = <int32_t*>malloc(pages * sizeof(int32_t))
    cdef tsd_key root = hasher.root(b"")
    cdef tsd_key key
    cdef dict out = {}
    # The pool is filled with chains; the one matched is the last.
    chains = max(2, pool.num_pages // pages + 2)
    tokens = np.random.default_rng(3).integers(0, 30_000, pages * size, dtype=np.int32)
    ids = <int32_t*>cnp.PyArray_DATA(tokens)
    for c in range(chains):
        ids[0] = c
        key = root
        parent = -1
        for k in range(pages):
            key = hasher.next(key, ids + k * size)
            keys[k] = key
            n = index.insert(parent, key, ids + k * size, index.take_device())
            nodes[k] = n
            parent = n
        for k in range(pages - 1, -1, -1):
            index.unref(nodes[k])
    clock = time.perf_counter_ns
    began = clock()
    for i in range(rounds):
        key = root
        for k in range(pages):
            key = hasher.next(key, ids + k * size)
    out["hash_ns"] = (clock() - began) / (rounds * pages)
    began = clock()
    for i in range(rounds):
        n = index.match(keys, ids, pages, nodes, &run)
    out["match_ns"] = (clock() - began) / (rounds * pages)
    if run != pages:
        raise RuntimeError(f"{run} of {pages} pages matched")
    spent = 0
    for i in range(min(rounds, 50)):
        ids[0] = chains + i
        key = root
        for k in range(pages):
            key = hasher.next(key, ids + k * size)
            keys[k] = key
        began = clock()
        for k in range(pages):
            nodes[k] = index.take_device()
        for k in range(pages):
            index.device.give(nodes[k])
        spent += clock() - began
        parent = -1
        for k in range(pages):
            nodes[k] = index.insert(parent, keys[k], ids + k * size, index.take_device())
            parent = nodes[k]
        for k in range(pages - 1, -1, -1):
            index.unref(nodes[k])
    out["evict_allocate_free_ns"] = spent / (min(rounds, 50) * pages)
    free(keys)
    free(nodes)
    return out


cdef class IndexProbe:
    """The index from Python, one chain at a time: what a request does to it, for the tests."""

    cdef PageHasher hasher
    cdef PagePool pool
    cdef PrefixIndex index

    def __init__(self, PageHasher hasher, int num_pages):
        self.hasher = hasher
        self.pool = PagePool(num_pages)
        self.index = PrefixIndex(hasher.page_size, self.pool, PagePool(0))

    cdef tsd_key key_at(self, cnp.ndarray tokens, int page):
        cdef tsd_key key = self.hasher.root(b"")
        cdef int k
        for k in range(page + 1):
            key = self.hasher.next(key, <int32_t*>cnp.PyArray_DATA(tokens) + k * self.hasher.page_size)
        return key

    def match(self, cnp.ndarray tokens) -> list:
        """References the cached pages at the start of `tokens` (int32); their nodes."""
        cdef int size = self.hasher.page_size, pages = tokens.shape[0] // size, k, run = 0
        cdef tsd_key* keys = <tsd_key*>malloc((pages + 1) * sizeof(tsd_key))
        cdef int32_t* nodes = <int32_t*>malloc((pages + 1) * sizeof(int32_t))
        cdef list found = []
        for k in range(pages):
            keys[k] = self.key_at(tokens, k)
        self.index.match(keys, <int32_t*>cnp.PyArray_DATA(tokens), pages, nodes, &run)
        for k in range(run):
            self.index.ref(nodes[k])
            found.append(nodes[k])
        free(keys)
        free(nodes)
        return found

    def extend(self, list nodes, cnp.ndarray tokens) -> bool:
        """Computes the page after `nodes` and indexes it, evicting if need be; False when every page is in use."""
        cdef int k = len(nodes), n
        cdef int page = self.index.take_device()
        if page < 0:
            return False
        n = self.index.insert(
            nodes[k - 1] if k else -1,
            self.key_at(tokens, k),
            <int32_t*>cnp.PyArray_DATA(tokens) + k * self.hasher.page_size,
            page,
        )
        nodes.append(n)
        return n >= 0

    def release(self, list nodes) -> None:
        """Gives the references up, deepest first."""
        for n in reversed(nodes):
            self.index.unref(n)

    def flush(self) -> int:
        return self.index.flush()

    @property
    def free(self) -> int:
        return self.pool.num_free

    @property
    def num_nodes(self) -> int:
        return self.index.num_nodes

    def integrity(self) -> None:
        self.pool.integrity()
        self.index.integrity()


cdef class DiskProbe:
    """The disk map from Python: a block a key, each of a node without pages, pinned as long as it is being stored."""

    cdef PrefixIndex index
    cdef DiskMap disk

    def __init__(self, int capacity):
        self.index = PrefixIndex(4, PagePool(0), PagePool(0), capacity + 64)
        self.disk = DiskMap(self.index, capacity)

    cdef tsd_key key(self, int number):
        cdef tsd_key key
        memset(&key, 0, sizeof(tsd_key))
        key.lo = number
        return key

    def adopt(self, int number) -> bool:
        return self.disk.adopt(self.key(number))

    def reserve(self, int number) -> list | None:
        """As a page in the host tier comes to be written: numbers given up for it, or None."""
        cdef int32_t ids[4]
        cdef int n = self.index.by_key(self.key(number))
        memset(ids, 0, sizeof(ids))
        if n < 0:
            n = self.index.place(-1, self.key(number), ids)
        self.index.pin(n)
        evicted = self.disk.reserve(n)
        if evicted is None:
            self.index.unpin(n)
            return None
        return [int.from_bytes(key[:8], "little") for key in evicted]

    def stored(self, int number, bint ok) -> None:
        cdef int n = self.index.by_key(self.key(number))
        self.disk.stored(n, ok)
        self.index.unpin(n)

    def touch(self, int number) -> None:
        self.disk.touch(self.index.by_key(self.key(number)))

    def drop(self, int number) -> None:
        self.disk.drop(self.index.by_key(self.key(number)))

    def readable(self, int number) -> bool:
        cdef int n = self.index.by_key(self.key(number))
        return n >= 0 and self.disk.readable(n)

    def clear(self) -> int:
        return len(self.disk.clear())

    @property
    def used(self) -> int:
        return self.disk.used

    @property
    def storing(self) -> int:
        return self.disk.storing

    @property
    def num_nodes(self) -> int:
        return self.index.num_nodes

    def integrity(self) -> None:
        self.index.integrity()
        self.disk.integrity()
