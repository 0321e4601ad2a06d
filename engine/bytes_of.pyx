"""What a step's arrays are on the wire: raw little-endian bytes (`protocol.py`), with no numpy call for each."""

cimport numpy as cnp
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t

cnp.import_array()


cdef cnp.ndarray _checked(object array, int kind):
    if not cnp.PyArray_Check(array) or cnp.PyArray_TYPE(<cnp.ndarray>array) != kind:
        raise TypeError("an array of another type was expected")
    if not cnp.PyArray_IS_C_CONTIGUOUS(<cnp.ndarray>array):
        raise TypeError("the array must be contiguous")
    return <cnp.ndarray>array


def masked_ids(ids, int64_t mask) -> bytes:
    """int64 ids[i] & mask."""
    cdef cnp.ndarray array = _checked(ids, cnp.NPY_INT64)
    cdef Py_ssize_t i, count = cnp.PyArray_SIZE(array)
    cdef int64_t* source = <int64_t*>cnp.PyArray_DATA(array)
    cdef bytes found = PyBytes_FromStringAndSize(NULL, 8 * count)
    cdef int64_t* target = <int64_t*>PyBytes_AS_STRING(found)
    for i in range(count):
        target[i] = source[i] & mask
    return found


def raw_tokens(tokens) -> bytes:
    """int32 tokens."""
    cdef cnp.ndarray array = _checked(tokens, cnp.NPY_INT32)
    return PyBytes_FromStringAndSize(<char*>cnp.PyArray_DATA(array), 4 * cnp.PyArray_SIZE(array))
