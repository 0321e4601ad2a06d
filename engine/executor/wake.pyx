"""Wakes the loop when a CUDA stream has come to a point: a host callback in C that writes an eventfd.

The driver is found at run time, so that this compiles and imports where there is none. No Python runs in the
driver's thread, and nothing here takes the interpreter lock.
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

cdef launch_host_function _launch = NULL


cdef void _wake(void *data) noexcept nogil:
    eventfd_write(<int><intptr_t>data, 1)


def available() -> bool:
    """Whether the CUDA driver's library is there."""
    global _launch
    cdef void *library
    if _launch == NULL:
        library = dlopen(b"libcuda.so.1", RTLD_NOW | RTLD_GLOBAL)
        if library != NULL:
            _launch = <launch_host_function>dlsym(library, b"cuLaunchHostFunc")
    return _launch != NULL


def after_stream(intptr_t stream, int fd) -> None:
    """Writes 1 to the eventfd `fd` once all work queued on `stream` (a cudaStream_t) so far is done.

    The stream stands still while the callback runs: give one that carries nothing else. Raises RuntimeError.
    """
    if _launch == NULL and not available():
        raise RuntimeError("the CUDA driver's library libcuda.so.1 is not there")
    cdef int code = _launch(<void *>stream, _wake, <void *><intptr_t>fd)
    if code != 0:
        raise RuntimeError(f"cuLaunchHostFunc failed with CUDA error {code}")
