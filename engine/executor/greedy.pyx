"""The step that runs most often, in C from the plan to the driver: decode rows that all draw their likeliest token.

Owns the graphs' handles by number of rows. Everything that such a step needs is looked at here, so that the loop spends
one call on it, and little of the processor's caches, which are cold after a step's wait.
"""

cimport numpy as cnp
from libc.stdint cimport int32_t, uint8_t

from tsd.engine.executor.blocks cimport StepBlocks, flags_of, ints
from tsd.engine.executor.wake cimport Landing

from tsd.kernels.step.exchange import UPDATES

cnp.import_array()

cdef int _UPDATES = UPDATES


cdef class GreedySteps:
    """`likeliest` (uint8) and `page_table` (int32, the host's copy) are by slot; `graphs` maps buckets of rows to handles.

    A handle is a CUgraphExec as an integer; without any, no plan is taken.
    """

    cdef public int padded_rows
    cdef StepBlocks _blocks
    cdef Landing _landing
    cdef object _likeliest, _page_table
    cdef uint8_t* _by_slot
    cdef int32_t* _cells
    cdef Py_ssize_t _width
    cdef list _handles
    cdef list _buckets
    cdef int _most

    def __init__(self, StepBlocks blocks not None, Landing landing not None, likeliest, page_table) -> None:
        self._blocks, self._landing = blocks, landing
        self._likeliest, self._page_table = likeliest, page_table
        self._by_slot, self._cells = flags_of(likeliest), ints(page_table)
        self._width = page_table.shape[1]
        self._most = -1

    def serve(self, graphs) -> None:
        """From now on steps of up to as many rows as the largest bucket are taken here."""
        cdef int rows, bucket
        self._handles, self._buckets = [0], [0]
        for bucket in sorted(graphs):
            for rows in range(len(self._handles), bucket + 1):
                self._handles.append(graphs[bucket])
                self._buckets.append(bucket)
        self._most = len(self._handles) - 1

    def launch(self, plan) -> int:
        """Queues the plan's step and its wake-up, the plan's page-table changes included; its block's serial number.

        -1, with nothing done, where the plan is another kind of step.
        """
        cdef int rows = plan.num_rows
        if rows == 0 or rows > self._most or plan.num_decode != rows or plan.admitted or plan.moves:
            return -1
        cdef object table_slots = plan.table_slots, slots = plan.slots
        cdef Py_ssize_t i, changes = cnp.PyArray_SIZE(<cnp.ndarray?>table_slots)
        if changes > _UPDATES or cnp.PyArray_SIZE(<cnp.ndarray?>plan.zero_pages):
            return -1
        cdef int32_t* slot = ints(slots)
        for i in range(rows):
            if not self._by_slot[slot[i]]:
                return -1
        cdef int32_t* at
        cdef int32_t* page
        cdef object table_index, table_pages
        self._blocks.stage(slots, plan.starts)
        if changes:
            table_index, table_pages = plan.table_index, plan.table_pages
            slot, at, page = ints(table_slots), ints(table_index), ints(table_pages)
            for i in range(changes):
                self._cells[slot[i] * self._width + at[i]] = page[i]
            self._blocks.stage_pages(table_slots, table_index, table_pages)
        self.padded_rows = <int>self._buckets[rows] - rows
        cdef object serial = self._blocks.send()
        self._landing.launch(self._handles[rows])
        self._landing.signal()
        return serial
