"""Timed loops over the index and the pool, for the microbenchmark: one page costs less than a Python call.

Owns nothing. Uses only what the scheduler uses.
"""

import time

cimport numpy as cnp
from libc.stdint cimport int32_t
from libc.stdlib cimport free, malloc

import numpy as np

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
