"""Copies between the tiers: they take their time, end in no particular order, fail, and meet rotten blocks and a full disk.

Owns the host tier's pages, the disk's blocks and the copies on their way. Checks that a source does not change and that no
page is used by two copies at once. Knows nothing about why a page moves.
"""

cimport numpy as cnp
from libc.stdint cimport int32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy

from tsd.scheduler.simulation.dice cimport Dice
from tsd.scheduler.simulation.executor cimport Executor

from tsd.scheduler.simulation.violation import Violation
from tsd.scheduler.types import LayersLanded, MoveDone

cnp.import_array()

cdef dict KINDS = {"write_back": WRITE_BACK, "load_back": LOAD_BACK, "store": STORE, "prefetch": PREFETCH, "discard": DISCARD}


cdef class Copy:
    """A move on its way; `before` is what its sources held when it began.

    `begun`: a load-back whose first layers were told of; then `sound` says whether the rest will come.
    """


cdef class Copies:
    """`disk` is what outlives the process: page key -> content."""

    def __cinit__(self, Dice dice, Executor executor, config, knobs, dict disk):
        self.dice = dice
        self.executor = executor
        self.page_size = config.page_size
        self.max_delay = knobs.max_delay
        self.chance_fail = knobs.fail_move
        self.chance_rot = knobs.rot
        self.chance_early = knobs.early_load
        self.host = <int32_t*>calloc(config.host_pages * self.page_size + 1, sizeof(int32_t))
        self.host_readers = <int32_t*>calloc(config.host_pages + 1, sizeof(int32_t))
        self.host_writers = <int32_t*>calloc(config.host_pages + 1, sizeof(int32_t))
        if self.host == NULL or self.host_readers == NULL or self.host_writers == NULL:
            raise MemoryError()
        self.moving = []
        self.disk = disk
        self.contents = {}

    def __dealloc__(self):
        free(self.host)
        free(self.host_readers)
        free(self.host_writers)

    cdef bytes content(self, int page):
        """What a host page holds."""
        return (<char*>(self.host + page * self.page_size))[: self.page_size * 4]

    cdef int begin(self, object move) except -1:
        cdef Copy copy = Copy()
        cdef Executor executor = self.executor
        cdef cnp.ndarray sources = move.sources, targets = move.targets
        cdef int i, source, target
        copy.move = move
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
                held = executor.content(source)
                if self.contents.setdefault(copy.keys[i], held) != held:
                    raise Violation(f"two contents for one key, in page {source}")
                copy.before.append(held)
                executor.copies[source] += 1
                self.lock(target, True)
            elif copy.kind == LOAD_BACK:
                if executor.readers[target] or executor.copies[target]:
                    raise Violation(f"page {target} is the target of a copy and in use")
                executor.copies[target] += 1
                self.lock(source, False)
            elif copy.kind == STORE:
                copy.before.append(self.content(source))
                self.lock(source, False)
            elif copy.kind == PREFETCH:
                self.lock(target, True)
        if copy.kind == DISCARD:
            for key in copy.keys:
                self.disk.pop(key, None)
        self.moving.append(copy)
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
        """Time passes for all; perhaps one ends, or brings its first layers: what the scheduler is told, or None."""
        cdef int i = self.dice.draw(len(self.moving))
        cdef Copy copy
        for copy in self.moving:
            copy.delay -= 1
        copy = <Copy>self.moving[i]
        if copy.kind == LOAD_BACK and not copy.begun and self.dice.luck(self.chance_early):
            copy.begun = True
            copy.sound = not self.dice.luck(self.chance_fail)
            return LayersLanded(copy.move.move_id)
        if copy.delay > 0:
            return None
        del self.moving[i]
        return self.end(copy)

    cdef Copy find(self, object move_id):
        cdef Copy copy
        for copy in self.moving:
            if copy.move.move_id == move_id:
                return copy
        return None

    cdef bint under_way(self, tuple moves):
        """Whether a step that waits for these load-backs must not land yet."""
        for move_id in moves:
            if self.find(move_id) is not None:
                return True
        return False

    cdef int bring(self, tuple moves) except -1:
        """A step that waits is launched: it will read what these load-backs bring, some of it only where one fails."""
        cdef Copy copy
        cdef int i, size = self.page_size
        for move_id in moves:
            copy = self.find(move_id)
            if copy is None or not copy.begun:
                raise Violation(f"a step waits for move {move_id}, which is not under way")
            for i in range(copy.count if copy.sound else self.dice.draw(copy.count)):
                memcpy(
                    self.executor.device + copy.targets[i] * size,
                    self.host + copy.sources[i] * size,
                    size * sizeof(int32_t),
                )
        return 0

    cdef object end(self, Copy copy):
        cdef int i, done, good = -1
        cdef bint ok = copy.sound if copy.begun else not self.dice.luck(self.chance_fail)
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
        cdef int size = self.page_size
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
            executor.copies[target] -= 1
            self.host_readers[source] -= 1
            if done:
                memcpy(executor.device + target * size, self.host + source * size, width)
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
            if copy.kind == STORE and not self.disk_full:
                for i in range(copy.count):
                    if self.dice.luck(512):
                        self.disk[copy.keys[i]] = copy.before[i]
        self.moving.clear()
        return 0
