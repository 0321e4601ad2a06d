"""Compiling Triton kernels for a GPU that this process does not open, in several processes at once.

`recorded` notes which variants a run of launches needs (on torch's `meta` device, say) and `Compilers` leave them in
Triton's cache on disk, where the process that will launch them finds them. Compiling is half Python, so threads of one
process get in each other's way and processes do not. Knows Triton's compiler; imports it only when asked.

    AheadError    the kernels could not be compiled, or not all of them
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import struct
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

_INDEX = struct.Struct("=H")
"""A job's number on the pipes. Reads and writes of so few bytes are whole: children share the pipes without a lock."""
_DONE, _FAILED = 0, 1
_RESULT = struct.Struct("=HB")
MOST_JOBS = 8192
"""What a pipe is sure to hold at once."""


class AheadError(Exception):
    """The kernels could not be compiled ahead."""


class Job(NamedTuple):
    """One variant of a kernel, and the call that puts it and its launcher into the cache.

    `key` is Triton's own name of the variant: source, types, constants, alignment, options, compiler.
    """

    name: str
    key: str
    compile: Callable[[], None]


class _Device:
    """What Triton asks of a driver before it compiles."""

    def __init__(self, capability: tuple[int, int]) -> None:
        from triton.backends.compiler import GPUTarget

        self._target = GPUTarget("cuda", 10 * capability[0] + capability[1], 32)

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0


@contextmanager
def recorded(capability: tuple[int, int], found: Callable[[Job], object] = bool) -> Iterator[list[Job]]:
    """Within, launches compile and run nothing; each variant that one of them needs is listed once, and told `found`.

    Triton works for a GPU of `capability` meanwhile.
    """
    from triton.runtime import JITFunction, driver
    from triton.runtime._async_compile import AsyncCompileMode, active_mode

    driver.set_active(_Device(capability))  # type: ignore[arg-type]
    jobs: list[Job] = []
    name = ""

    def add(job: Job) -> None:
        jobs.append(job)
        found(job)

    add(Job("launching", "", make_utilities))

    class Notebook(AsyncCompileMode):
        """Stands where Triton hands what it would compile to a pool of threads."""

        def submit(self, key: Any, compile_fn: Any, finalize_fn: Any, *_: Any) -> Any:
            add(Job(name, key, lambda: make_launcher(compile_fn())))
            # As if compiled: later launches of this variant are not asked about again.
            placeholder = object()
            finalize_fn(placeholder)
            return placeholder

    launch = JITFunction.run
    launched = set()

    def note(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        nonlocal name
        name = self.fn.__name__
        launched.add(self)
        return launch(self, *args, grid=grid, warmup=True, **options)

    JITFunction.run = note  # type: ignore[method-assign]
    token = active_mode.set(Notebook(None))  # type: ignore[arg-type]
    try:
        yield jobs
    finally:
        active_mode.reset(token)
        JITFunction.run = launch  # type: ignore[method-assign]
        driver.set_active(None)  # type: ignore[arg-type]  # whoever launches next finds the real one
        for function in launched:
            function.device_caches.clear()  # of the placeholders


class Compilers:
    """Forked children that compile, at most `processes` at a time. `started` runs in each of them first.

    This process must have one thread and no CUDA context.
    """

    def __init__(self, processes: int, started: Callable[[], None]) -> None:
        self._processes = processes
        self._started = started
        self._results, self._tell = os.pipe()
        self._begun: list[Job] = []
        self._children: list[int] = []

    def begin(self, job: Job) -> bool:
        """Compiles `job` in a child of its own from now on, unless there are enough of them; whether it does."""
        if len(self._children) >= self._processes or len(self._begun) >= MOST_JOBS:
            return False
        index = len(self._begun)
        self._begun.append(job)
        self._fork(lambda: _compile(job, index, self._tell))
        return True

    def finish(self, jobs: list[Job], progress: Callable[[int], None]) -> None:
        """Compiles the rest, `jobs`; `progress` is told how many are done, with those that `begin` took.

        Raises AheadError naming the kernels that failed, after all the others are done.
        """
        every = [*self._begun, *jobs]
        if len(every) > MOST_JOBS:
            raise AheadError(f"{len(every)} variants are more than is sensible")
        queue, feed = os.pipe()
        os.write(feed, b"".join(_INDEX.pack(i) for i in range(len(self._begun), len(every))))
        os.close(feed)
        # As many as there are cores, though the first may still be at work: they are few, and soon done.
        for _ in range(min(self._processes, len(jobs))):
            self._fork(lambda: _work(every, queue, self._tell))
        os.close(queue)
        os.close(self._tell)
        failed, done = [], 0
        while result := os.read(self._results, _RESULT.size):
            index, outcome = _RESULT.unpack(result)
            if outcome == _FAILED:
                failed.append(every[index].name)
            done += 1
            progress(done)
        os.close(self._results)
        for child in self._children:
            os.waitpid(child, 0)
        if failed:
            raise AheadError(f"{len(failed)} kernels could not be compiled: {', '.join(sorted(set(failed)))}")
        if done < len(every):
            raise AheadError(f"{len(every) - done} kernels were left, because a compiling process ended")

    def _fork(self, work: Callable[[], None]) -> None:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                self._started()
                work()
                code = 0
            finally:
                os._exit(code)
        self._children.append(child)


def _work(jobs: list[Job], queue: int, tell: int) -> None:
    while order := os.read(queue, _INDEX.size):
        (index,) = _INDEX.unpack(order)
        _compile(jobs[index], index, tell)


def _compile(job: Job, index: int, tell: int) -> None:
    outcome = _DONE
    try:
        job.compile()
    except Exception:  # one kernel must not keep the others from being compiled; it is named at the end
        traceback.print_exc()
        outcome = _FAILED
    os.write(tell, _RESULT.pack(index, outcome))


def make_launcher(kernel: Any) -> None:
    """Builds the C function that passes this kernel's arguments, where this Triton makes one for each signature.

    It is linked with the driver's library: without that nothing is built, and nothing could be launched.
    """
    if _has_driver():
        from triton.backends.nvidia.driver import CudaLauncher

        CudaLauncher(kernel.src, kernel.metadata)


def make_utilities() -> None:
    """Builds Triton's own extension for the driver, as its first launch would."""
    if _has_driver():
        from triton.backends.nvidia.driver import CudaUtils

        CudaUtils()


def cache_folder(key: str) -> str:
    """The folder's name, within Triton's cache, in which the variant of that key lies."""
    from triton.runtime.cache import get_cache_manager

    return Path(get_cache_manager(hashlib.sha256(key.encode()).hexdigest()).cache_dir).name  # type: ignore[attr-defined]


@cache
def _has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
