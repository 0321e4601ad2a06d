"""One copy between tiers that is on its way: which nodes and pages it holds until its MoveDone. Plain record."""

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free


cdef class Transfer:
    """`nodes[i]` is copied to or from `pages[i]`, the end that only this transfer owns. `req` waits for it, or -1.

    `begun`: a load-back whose first layers are in place, so that steps of its request may have been launched.
    """

    def __cinit__(self, int64_t move_id, str kind, int size):
        self.move_id = move_id
        self.kind = kind
        self.req = -1
        self.nodes = <int32_t*>calloc(size + 1, sizeof(int32_t))
        self.pages = <int32_t*>calloc(size + 1, sizeof(int32_t))
        self.keys = []
        if self.nodes == NULL or self.pages == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self.nodes)
        free(self.pages)
