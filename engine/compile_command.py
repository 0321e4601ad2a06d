"""`python -m tsd.engine.compile_command`: compiles an engine's kernels into the cache on disk, before they are needed.

An engine starts it first of all and loads weights meanwhile; `tsd kernels --build` runs it at installation. It opens no
GPU. Progress goes to standard output, a JSON line each: {"done": 3, "of": 48}.
"""

from __future__ import annotations

import fcntl
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tsd.engine import compiled, life
from tsd.engine.config import EngineConfig
from tsd.engine.errors import StartError
from tsd.engine.model_errors import ModelError
from tsd.kernels.ahead import AheadError, Compilers, Job, cache_folder
from tsd.kernels.compiling import read_triton
from tsd.kernels.platform import DriverError, Platform, ask_driver
from tsd.kernels.spec import KernelError

Progress = Callable[[int, int], None]


class Order(msgspec.Struct, frozen=True):
    """What to compile for. Without a platform the driver is asked about the configuration's device."""

    config: EngineConfig
    parent: int = 0
    """The process without which this one is of no use, or 0."""


def build(
    config: EngineConfig,
    platform: Platform,
    memory_bytes: int,
    progress: Progress,
    *,
    parent: int = 0,
    here: bool = True,
) -> int:
    """Compiles everything that an engine of `config` launches; how many kernels that is.

    `here` tells that the platform is this machine's: the next start then needs no look at what there is to compile.

    Must run in a process of one thread without a CUDA context. Raises AheadError, and what building a model raises.
    """
    # Triton names a variant by its own files too, half a GB of them: they are read while torch is imported.
    reading = threading.Thread(target=read_triton)
    reading.start()
    # Here, since it takes seconds.
    from tsd.engine.variants import variants

    reading.join()
    me = os.getpid()

    def started() -> None:
        if parent:
            life.die_with_parent(me)

    with _alone():
        compilers = Compilers(workers(), started)
        rest: list[Job] = []

        def found(job: Job) -> None:
            # The slow ones begin while the others are still being found.
            if job.name not in _SLOW or not compilers.begin(job):
                rest.append(job)

        jobs = variants(config, platform, memory_bytes, found)
        count = len(jobs)
        progress(0, count)
        rest.sort(key=lambda job: _NEXT.index(job.name) if job.name in _NEXT else len(_NEXT))
        compilers.finish(rest, lambda done: progress(done, count))
        if here:
            compiled.note(config, [cache_folder(job.key) for job in jobs if job.key])
    return count


_SLOW = {"launching", "pick_kernel", "paged_kernel", "shared_kernel", "solo_kernel", "flashinfer"}
_NEXT = ("paged_kernel", "score_kernel", "slab_kernel", "skinny_kernel")


def workers() -> int:
    """Compiling processes: all cores but one, which loads the weights meanwhile."""
    return max(1, len(os.sched_getaffinity(0)) - 1)


@contextmanager
def _alone() -> Iterator[None]:
    """One compilation at a time on this cache: engines that start together find what the first has compiled."""
    from triton import knobs

    folder = Path(knobs.cache.dir)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "tsd.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> int:
    gc.disable()  # as in the engine's process
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    if order.parent:
        life.die_with_parent(order.parent)

    def tell(done: int, of: int) -> None:
        sys.stdout.write(f'{{"done":{done},"of":{of}}}\n')
        sys.stdout.flush()

    try:
        index = int(order.config.device.partition(":")[2] or 0)
        platform, memory_bytes = ask_driver(index)
        build(order.config, platform, memory_bytes, tell, parent=order.parent)
    except (KernelError, ModelError, StartError):
        return 1  # the engine will say the same
    except (AheadError, DriverError) as error:
        print(f"tsd: kernels were not compiled ahead: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Taking a process with torch apart takes most of a second, and the engine waits.
    os._exit(code)
