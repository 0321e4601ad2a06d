"""Compiling Triton kernels ahead of use, several at once, and counting those compiled later than they should be.

Knows Triton's launcher; imports it only when asked. Where Triton is not installed, nothing is compiled or counted.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

log = logging.getLogger("tsd.kernels")


@contextmanager
def compile_only(threads: int = 0) -> Iterator[None]:
    """Within, a launch compiles its kernel in a thread pool and runs nothing; at the end all are compiled.

    What surrounds the launches (torch operations, allocations) runs as usual: results are meaningless.
    """
    if find_spec("triton") is None:
        yield
        return
    from triton.runtime import JITFunction
    from triton.runtime._async_compile import AsyncCompileMode

    launch = JITFunction.run

    def compile_instead(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        return launch(self, *args, grid=grid, warmup=True, **options)

    pool = ThreadPoolExecutor(threads or os.cpu_count() or 1, thread_name_prefix="tsd-compile")
    JITFunction.run = compile_instead  # type: ignore[method-assign]
    try:
        with pool, AsyncCompileMode(pool):
            yield
    finally:
        JITFunction.run = launch  # type: ignore[method-assign]


def read_triton() -> None:
    """Lets Triton take the sum of its own files, half a GB, which is part of each kernel's name; it keeps it.

    Reading lets other threads work: what else a start does need not wait for it.
    """
    if find_spec("triton") is None:
        return
    from triton.runtime import cache

    if hasattr(cache, "triton_key"):
        cache.triton_key()


class CompilationWatch:
    """Within it, which kernels Triton had to compile, and how many it loaded, compiled or not."""

    def __init__(self) -> None:
        self.compiled: list[str] = []
        self.loaded = 0

    def __enter__(self) -> None:
        if find_spec("triton") is None:
            return
        from triton import knobs

        def told(*, src: Any, cache_hit: bool, **_: Any) -> None:
            self.loaded += 1
            if not cache_hit:
                self.compiled.append(str(getattr(src, "name", "")))

        self._before = knobs.compilation.listener
        knobs.compilation.listener = told

    def __exit__(self, *_: object) -> None:
        if find_spec("triton") is not None:
            from triton import knobs

            knobs.compilation.listener = self._before


class CompilationCounter:
    """Counts kernels compiled (or read from Triton's disk cache) since `start`; after ready it should stay at 0."""

    def __init__(self) -> None:
        self.count = 0
        self.names: list[str] = []

    def start(self) -> None:
        if find_spec("triton") is None:
            return
        from triton import knobs

        def compiled(*_: Any, **facts: Any) -> None:
            self.count += 1
            name = str(facts.get("repr", ""))[:400]
            if len(self.names) < 64:
                self.names.append(name)
            log.warning("a kernel was compiled after the engine was ready: %s", name)

        knobs.runtime.jit_post_compile_hook = compiled


def count(name: str) -> None:
    """Lets the counter, if it has started, count something that another library compiled."""
    if find_spec("triton") is None:
        return
    from triton import knobs

    if knobs.runtime.jit_post_compile_hook is not None:
        knobs.runtime.jit_post_compile_hook(repr=name)  # type: ignore[call-arg]
