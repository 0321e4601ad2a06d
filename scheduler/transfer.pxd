from libc.stdint cimport int32_t, int64_t


cdef class Transfer:
    cdef int64_t move_id
    cdef str kind
    cdef int req
    cdef int first
    cdef int count
    cdef bint begun
    cdef int32_t* nodes
    cdef int32_t* pages
    cdef list keys
