"""The host's side of the exchange with the device, in C: blocks are written, answers read, with no Python object a row.

`kernels/step/exchange.py` has the layout and the rules. Owns the serial number of the newest block and of the newest
answer read; a block is never written before the step DEPTH earlier has been answered.
"""

cimport numpy as cnp
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from tsd.kernels.step.exchange import (
    ANSWER, BEGAN, DEPTH, ENDED, HEAD, PARAMETERS, SAMPLED, UNWRITTEN, UPDATES, block_words,
)

cnp.import_array()

cdef int _DEPTH = DEPTH, _HEAD = HEAD, _PARAMETERS = PARAMETERS, _UPDATES = UPDATES, _UNWRITTEN = UNWRITTEN
cdef int _ANSWER = ANSWER, _BEGAN = BEGAN, _ENDED = ENDED
cdef uint32_t _SAMPLED = SAMPLED


class OutOfStep(RuntimeError):
    """Host and device do not agree on which step this is, or a step left no token where one was due."""


cdef void* _data(object array, int kind) except NULL:
    """The memory of a contiguous one-dimensional array of this type."""
    if not cnp.PyArray_Check(array):
        raise TypeError(f"an array was expected, not {type(array).__name__}")
    cdef cnp.ndarray found = <cnp.ndarray>array
    if cnp.PyArray_TYPE(found) != kind or not cnp.PyArray_IS_C_CONTIGUOUS(found):
        raise TypeError(f"a contiguous array of another type was expected, not {array.dtype}")
    return cnp.PyArray_DATA(found)


cdef int32_t* ints(object array) except NULL:
    return <int32_t*>_data(array, cnp.NPY_INT32)


cdef uint8_t* flags_of(object array) except NULL:
    return <uint8_t*>_data(array, cnp.NPY_UINT8)


def all_set(flags, slots) -> bool:
    """Whether flags[slot] (uint8) is set for each of `slots` (int32)."""
    cdef uint8_t* by_slot = flags_of(flags)
    cdef int32_t* slot = ints(slots)
    cdef cnp.npy_intp i
    for i in range(cnp.PyArray_SIZE(<cnp.ndarray>slots)):
        if not by_slot[slot[i]]:
            return False
    return True


def write_cells(table, slots, index, pages) -> None:
    """table[slots[i], index[i]] = pages[i], int32 all."""
    cdef int32_t* cells = ints(table)
    cdef cnp.npy_intp i, width = (<cnp.ndarray>table).shape[1]
    cdef int32_t* slot = ints(slots)
    cdef int32_t* at = ints(index)
    cdef int32_t* page = ints(pages)
    for i in range(cnp.PyArray_SIZE(<cnp.ndarray>slots)):
        cells[slot[i] * width + at[i]] = page[i]


cdef class StepBlocks:
    """`blocks` and `answers` are the exchange's host memory; `width` is the pages of a slot's row in the page table.

    `serial` is that of the newest block sent.
    """

    def __init__(self, blocks, answers, int most, int width) -> None:
        cdef int i
        self._blocks, self._answers = blocks, answers
        self._first_block, self._first_answer = ints(blocks), ints(answers)
        self._block_words, self._answer_words = blocks.shape[1], answers.shape[1]
        if blocks.shape[0] != _DEPTH or self._block_words != block_words(most) or _DEPTH > 64:
            raise ValueError(f"blocks of shape {blocks.shape} are not for {most} rows")
        if answers.shape[0] != _DEPTH + 1 or self._answer_words < _ANSWER + most:
            raise ValueError(f"answers of shape {answers.shape} are not for {most} rows")
        self._most, self._width = most, width
        self._views = [None] * _DEPTH
        for i in range(_DEPTH):
            self._sizes[i] = -1

    cdef int32_t* _block(self, uint32_t serial) noexcept:
        return self._first_block + <int64_t>(serial & (_DEPTH - 1)) * self._block_words

    cdef int32_t* _answer(self, uint32_t serial) noexcept:
        return self._first_answer + <int64_t>(serial & (_DEPTH - 1)) * self._answer_words

    cdef int _free(self) except -1:
        """The next block may be written only when the step that used it last has been answered."""
        if <uint32_t>(self.serial + 1 - self._answered) > <uint32_t>_DEPTH:
            raise OutOfStep(f"block {self.serial + 1} is asked for, and block {self._answered} is the last answered")
        return 0

    cpdef int stage(self, slots, starts) except -1:
        """Puts rows into the next block: each one's slot and the position of its token (int32 [B] each)."""
        cdef int32_t* slot = ints(slots)
        cdef int32_t* start = ints(starts)
        cdef cnp.npy_intp i, rows = cnp.PyArray_SIZE(<cnp.ndarray>slots)
        if rows > self._most or cnp.PyArray_SIZE(<cnp.ndarray>starts) != rows:
            raise ValueError(f"{rows} rows, of which {self._most} fit")
        self._free()
        cdef int32_t* record = self._block(self.serial + 1) + _HEAD
        for i in range(rows):
            record[2 * i] = slot[i]
            record[2 * i + 1] = start[i]
        self._rows = rows
        return 0

    def stage_sampling(self, temperature, top_k, top_p, min_p, seeds, num_prompt) -> None:
        """Adds to the rows of `stage` what these arrays, by slot, ask of sampling."""
        cdef float* heat = <float*>_data(temperature, cnp.NPY_FLOAT32)
        cdef float* nucleus = <float*>_data(top_p, cnp.NPY_FLOAT32)
        cdef float* least = <float*>_data(min_p, cnp.NPY_FLOAT32)
        cdef int64_t* seed = <int64_t*>_data(seeds, cnp.NPY_INT64)
        cdef int32_t* most = ints(top_k)
        cdef int32_t* prompt = ints(num_prompt)
        cdef int32_t* row = self._block(self.serial + 1) + _HEAD
        cdef int32_t* asked = row + 2 * self._most
        cdef int64_t index
        cdef int i, slot
        for i in range(self._rows):
            slot = row[2 * i]
            index = <int64_t>row[2 * i + 1] + 1 - prompt[slot]
            memcpy(asked, heat + slot, 4)
            asked[1] = most[slot]
            memcpy(asked + 2, nucleus + slot, 4)
            memcpy(asked + 3, least + slot, 4)
            memcpy(asked + 4, seed + slot, 8)
            memcpy(asked + 6, &index, 8)
            asked += _PARAMETERS
        self._sampled = 1

    cpdef int stage_pages(self, slots, index, pages) except -1:
        """Puts page-table changes into the next block, at most UPDATES (int32 [K] each)."""
        cdef int32_t* slot = ints(slots)
        cdef int32_t* at = ints(index)
        cdef int32_t* page = ints(pages)
        cdef cnp.npy_intp i, count = cnp.PyArray_SIZE(<cnp.ndarray>slots)
        if count > _UPDATES:
            raise ValueError(f"{count} page-table changes, of which {_UPDATES} fit")
        self._free()
        cdef int32_t* pair = self._block(self.serial + 1) + _HEAD + (2 + _PARAMETERS) * self._most
        for i in range(count):
            pair[0] = slot[i] * self._width + at[i]
            pair[1] = page[i]
            pair += 2
        self._changes = count
        return 0

    cpdef uint32_t send(self) except? 0:
        """Gives the block, with what was staged since the last one, to the next step launched; its serial number."""
        cdef uint32_t serial = self.serial + 1
        cdef int32_t* answer = self._answer(serial)
        cdef uint32_t sizes = <uint32_t>self._rows | <uint32_t>self._changes << 16
        cdef int i, due = self._rows if self._rows else self._most
        self._free()
        for i in range(due):
            answer[_ANSWER + i] = _UNWRITTEN
        _forget(answer)
        # The head last, in one store: with it, the block is there.
        if self._sampled:
            sizes |= _SAMPLED
        (<volatile uint64_t*>self._block(serial))[0] = <uint64_t>sizes << 32 | serial
        self._rows = self._changes = self._sampled = 0
        self.serial = serial
        return serial

    def read(self, uint32_t serial, int rows) -> int:
        """Checks the answer of a step that has ended and drew `rows` tokens; how many of them are -1.

        Raises OutOfStep where the device did not take this very block, or did not draw as many.
        """
        cdef volatile int32_t* answer = self._answer(serial)
        cdef int i, bad = 0
        cdef int32_t token
        if <uint32_t>answer[0] != serial or serial != <uint32_t>(self._answered + 1) or rows > self._most:
            raise OutOfStep(
                f"the answer of block {<uint32_t>answer[0]} lies where that of block {serial} was due, "
                f"after block {self._answered}"
            )
        for i in range(rows):
            token = answer[_ANSWER + i]
            if token < 0:
                if token != -1:
                    raise OutOfStep(f"block {serial} drew no token for row {i} of {rows}")
                bad += 1
        self._answered = serial
        return bad

    def tokens(self, uint32_t serial, int rows):
        """The tokens of an answer, int32 [rows]: a view, the same object as last time for as many; valid until `send`
        comes to its place again."""
        cdef int place = serial & (_DEPTH - 1)
        if self._sizes[place] != rows:
            self._views[place] = self._answers[place, _ANSWER : _ANSWER + rows]
            self._sizes[place] = rows
        return self._views[place]

    def set_serial(self, uint32_t serial) -> None:
        """Goes on from this block, as if all before it had been answered. The device's clock must be set alike."""
        self.serial = self._answered = serial

    def times(self, uint32_t serial) -> tuple[int, int]:
        """When the step began and ended by the device's clock, in nanoseconds; 0 where it does not tell."""
        cdef int64_t* answer = <int64_t*>self._answer(serial)
        return answer[_BEGAN], answer[_ENDED]


cdef void _forget(int32_t* answer) noexcept:
    """The times of the step before must not pass for this one's."""
    cdef int i
    for i in range(2 * (_ENDED + 1)):
        answer[i] = 0
