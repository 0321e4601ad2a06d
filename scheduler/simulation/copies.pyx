"""Copies between the tiers: they take their time, end in no particular order, fail, and meet rotten blocks and a full disk.

Owns the host tier's pages, the disk's blocks and the copies on their way. Checks that a source does not change and that no
page is used by two copies at once. Knows nothing about why a page moves.
"""

cimport numpy as cnp
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy

from tsd.scheduler.simulation.dice cimport Dice
from tsd.scheduler.simulation.executor cimport POISON, Executor

from tsd.scheduler.simulation.violation import Violation
from tsd.scheduler.types import LayersLanded, MoveDone

cnp.import_array()

cdef dict KINDS = {"write_back": WRITE_BACK, "load_back": LOAD_BACK, "store": STORE, "prefetch": PREFETCH, "discard": DISCARD}


cdef class Copy:
    """A move on its way; `before` is what its sources held when it started. `told`: its first layers were reported."""


cdef class Copies:
    """`disk` is what outlives the process: page key -> content."""

    def __cinit__(self, Dice dice, Executor executor, config, knobs, dict disk):
        self.dice = dice
        self.executor = executor
        self.page_size = config.page_size
        self.max_delay = knobs.max_delay
        self.chance_fail = knobs.fail_move
        self.chance_rot = knobs.rot
        self.chance_layers = knobs.layers
        self.host = <int32_t*>calloc(config.host_pages * self.page_size + 1, sizeof(int32_t))
        self.host_readers = <int32_t*>calloc(config.host_pages + 1, sizeof(int32_t))
        self.host_writers = <int32_t*>calloc(config.host_pages + 1, sizeof(int32_t))
        if self.host == NULL or self.host_readers == NULL or self.host_writers == NULL:
            raise MemoryError()
        self.moving = []
        self.on_their_way = set()
        self.disk = disk
        self.contents = {}

    def __dealloc__(self):
        free(self.host)
        free(self.host_readers)
        free(self.host_writers)

    cdef bytes content(self, int page):
        """What a host page holds."""
        return (<char*>(self.host + page * self.page_size))[: self.page_size * 4]

    cdef int begin(self, object move, int64_t step) except -1:
        """A plan orders the move: from now on its pages are its own. It starts when the steps before `step` have run."""
        cdef Copy copy = Copy()
        cdef Executor executor = self.executor
        cdef cnp.ndarray sources = move.sources, targets = move.targets
        cdef int i, source, target
        copy.move = move
        copy.move_id = move.move_id
        copy.step = step
        copy.kind = KINDS[move.kind]
        copy.count = sources.shape[0]
        copy.sources = <int32_t*>cnp.PyArray_DATA(sources)
        copy.targets = <int32_t*>cnp.PyArray_DATA(targets)
        copy.keys = move.keys
        copy.delay = self.dice.draw(self.max_delay + 1)
        copy.before = []
        for i in range(copy.count):
            source = copy.sources[i]
            target = copy.targets[i]
            if copy.kind == WRITE_BACK:
                executor.copies[source] += 1
                self.lock(target, True)
            elif copy.kind == LOAD_BACK:
                if executor.readers[target] or executor.copies[target] or executor.loading[target] >= 0:
                    raise Violation(f"page {target} is the target of a copy and in use")
                executor.loading[target] = copy.move_id
                self.lock(source, False)
            elif copy.kind == STORE:
                self.lock(source, False)
            elif copy.kind == PREFETCH:
                self.lock(target, True)
        if copy.kind == DISCARD:
            for key in copy.keys:
                self.disk.pop(key, None)
        self.moving.append(copy)
        self.on_their_way.add(copy.move_id)
        return 0

    cdef int start(self, Copy copy) except -1:
        """What the sources hold now must be what arrives."""
        cdef int i
        copy.started = True
        for i in range(copy.count):
            if copy.kind == WRITE_BACK:
                held = self.executor.content(copy.sources[i])
                if self.contents.setdefault(copy.keys[i], held) != held:
                    raise Violation(f"two contents for one key, in page {copy.sources[i]}")
                copy.before.append(held)
            elif copy.kind == STORE:
                copy.before.append(self.content(copy.sources[i]))
        return 0

    cdef int lock(self, int page, bint write) except -1:
        if self.host_writers[page] or (write and self.host_readers[page]):
            raise Violation(f"host page {page} is used by two copies")
        if write:
            self.host_writers[page] = 1
        else:
            self.host_readers[page] += 1
        return 0

    cdef object step(self):
        """Time passes for all; perhaps something is to be told of one: a MoveDone, a LayersLanded, or None."""
        cdef int i
        cdef Copy copy
        for copy in self.moving:
            if copy.started:
                copy.delay -= 1
            elif copy.kind > LOAD_BACK or self.executor.idle_before(copy.step):
                self.start(copy)
            if copy.kind == LOAD_BACK and copy.started and not copy.told and self.dice.luck(self.chance_layers):
                copy.told = True
                return LayersLanded(copy.move_id)
        i = self.dice.draw(len(self.moving))
        copy = <Copy>self.moving[i]
        if copy.delay > 0 or not copy.started:
            return None
        del self.moving[i]
        self.on_their_way.discard(copy.move_id)
        return self.end(copy)

    cdef object end(self, Copy copy):
        cdef int i, done, good = -1
        cdef bint ok = not self.dice.luck(self.chance_fail)
        done = copy.count if ok else 0
        if copy.kind == PREFETCH and ok:
            good = 0
            for key in copy.keys:
                if key not in self.disk or self.dice.luck(self.chance_rot):
                    break
                good += 1
            ok = good == copy.count
            done = good
        elif copy.kind == STORE and (self.disk_full or not ok):
            # A disk that fills up refuses a block; those before it are removed again.
            done = 0
            ok = False
        for i in range(copy.count):
            self.end_page(copy, i, i < done)
        return MoveDone(copy.move.move_id, ok, good)

    cdef int end_page(self, Copy copy, int i, bint done) except -1:
        """The i-th page of a move was copied, or not."""
        cdef Executor executor = self.executor
        cdef int k, size = self.page_size
        cdef size_t width = size * sizeof(int32_t)
        cdef int source = copy.sources[i], target = copy.targets[i]
        if copy.kind == WRITE_BACK:
            if memcmp(executor.device + source * size, <char*>(<bytes>copy.before[i]), width) != 0:
                raise Violation(f"page {source} changed under a copy")
            executor.copies[source] -= 1
            self.host_writers[target] = 0
            if done:
                memcpy(self.host + target * size, executor.device + source * size, width)
        elif copy.kind == LOAD_BACK:
            executor.loading[target] = -1
            self.host_readers[source] -= 1
            if done:
                memcpy(executor.device + target * size, self.host + source * size, width)
            else:
                for k in range(size):
                    executor.device[target * size + k] = POISON
        elif copy.kind == STORE:
            if memcmp(self.host + source * size, <char*>(<bytes>copy.before[i]), width) != 0:
                raise Violation(f"host page {source} changed under a copy")
            self.host_readers[source] -= 1
            if done:
                self.disk[copy.keys[i]] = copy.before[i]
        elif copy.kind == PREFETCH:
            self.host_writers[target] = 0
            if done:
                memcpy(self.host + target * size, <char*>(<bytes>self.disk[copy.keys[i]]), width)
        return 0

    cdef int abandon(self) except -1:
        """The process died: blocks on their way to the disk are there whole or not at all, and in no order."""
        cdef Copy copy
        cdef int i
        for copy in self.moving:
            if copy.kind == STORE and copy.started and not self.disk_full:
                for i in range(copy.count):
                    if self.dice.luck(512):
                        self.disk[copy.keys[i]] = copy.before[i]
        self.moving.clear()
        self.on_their_way.clear()
        return 0
