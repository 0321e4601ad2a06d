"""Ties an engine's life to its front's. Linux only.

Three ways in which the front's end is noticed, so that no engine outlives it: the kernel's parent-death signal
(also for `kill -9`), the life line (a pipe whose other end the front holds), and the parent's process id.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Asks the kernel to kill this process when its parent ends. Exits at once where it has ended already."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os._exit(1)


def watch_life_line(fd: int, on_end: Callable[[], None]) -> None:
    """Calls `on_end` once, on the running loop, when the front closes its end of the pipe."""
    loop = asyncio.get_running_loop()
    os.set_blocking(fd, False)

    def readable() -> None:
        try:
            ended = not os.read(fd, 4096)
        except BlockingIOError:
            return
        if ended:
            loop.remove_reader(fd)
            on_end()

    loop.add_reader(fd, readable)
