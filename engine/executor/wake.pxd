cdef class Landing:
    cdef void* _stream
    cdef void* _side
    cdef void* _event
    cdef void* _fd
    cpdef int launch(self, long long graph) except -1
    cpdef int signal(self) except -1
