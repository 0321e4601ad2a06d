"""The few driver calls of a steady step, in C: its graph, the hand-over to the side stream, and the wake-up of the loop.

The driver is found at run time, so that this compiles and imports where there is none. The callback that the driver
runs writes an eventfd: no Python runs in its thread, and nothing here waits for the device.
"""

from libc.stdint cimport intptr_t, uint64_t


cdef extern from "sys/eventfd.h" nogil:
    int eventfd_write(int fd, uint64_t value)


cdef extern from "dlfcn.h" nogil:
    void *dlopen(const char *path, int mode)
    void *dlsym(void *handle, const char *name)
    const int RTLD_NOW
    const int RTLD_GLOBAL


ctypedef void (*host_function)(void *) noexcept nogil
ctypedef int (*launch_host_function)(void *stream, host_function function, void *data) noexcept nogil
ctypedef int (*graph_launch)(void *graph, void *stream) noexcept nogil
ctypedef int (*event_create)(void **event, unsigned int flags) noexcept nogil
ctypedef int (*event_record)(void *event, void *stream) noexcept nogil
ctypedef int (*stream_wait)(void *stream, void *event, unsigned int flags) noexcept nogil

cdef launch_host_function _launch = NULL
cdef graph_launch _replay = NULL
cdef event_create _create = NULL
cdef event_record _record = NULL
cdef stream_wait _wait = NULL

cdef unsigned int DISABLE_TIMING = 2


cdef void _wake(void *data) noexcept nogil:
    eventfd_write(<int><intptr_t>data, 1)


def available() -> bool:
    """Whether the CUDA driver's library is there, with all that is needed of it."""
    global _launch, _replay, _create, _record, _wait
    cdef void *library
    if _launch == NULL:
        library = dlopen(b"libcuda.so.1", RTLD_NOW | RTLD_GLOBAL)
        if library != NULL:
            _replay = <graph_launch>dlsym(library, b"cuGraphLaunch")
            _create = <event_create>dlsym(library, b"cuEventCreate")
            _record = <event_record>dlsym(library, b"cuEventRecord")
            _wait = <stream_wait>dlsym(library, b"cuStreamWaitEvent")
            _launch = <launch_host_function>dlsym(library, b"cuLaunchHostFunc")
    return _launch != NULL and _replay != NULL and _create != NULL and _record != NULL and _wait != NULL


cdef int _check(int code, str call) except -1:
    if code != 0:
        raise RuntimeError(f"{call} failed with CUDA error {code}")
    return 0


cdef class Landing:
    """Ends steps: tells the loop through the eventfd `fd` when what `stream` was given so far is done.

    The callback runs on `side`, a stream that carries nothing else, because a stream stands still meanwhile. Streams
    are cudaStream_t as integers. Raises RuntimeError where the driver is not there or a call fails.
    """

    def __init__(self, intptr_t stream, intptr_t side, int fd) -> None:
        if not available():
            raise RuntimeError("the CUDA driver's library libcuda.so.1 is not there")
        self._stream = <void *>stream
        self._side = <void *>side
        self._fd = <void *><intptr_t>fd
        _check(_create(&self._event, DISABLE_TIMING), "cuEventCreate")

    cpdef int launch(self, long long graph) except -1:
        """Queues an executable graph (CUgraphExec as an integer)."""
        return _check(_replay(<void *><intptr_t>graph, self._stream), "cuGraphLaunch")

    cpdef int signal(self) except -1:
        """Queues the wake-up."""
        _check(_record(self._event, self._stream), "cuEventRecord")
        _check(_wait(self._side, self._event, 0), "cuStreamWaitEvent")
        return _check(_launch(self._side, _wake, self._fd), "cuLaunchHostFunc")
