"""How many threads the C kernels may use. Works, as one thread, where they were not compiled."""

from __future__ import annotations


def set_threads(threads: int) -> int:
    """Lets each kernel use up to `threads` threads, the caller's included; returns how many it got.

    More than one pays only where the others have cores to themselves: a helper that loses its core holds up the call.
    """
    try:
        from tsd.kernels.cpu import native
    except ImportError:
        return 1
    return native.set_threads(threads)
