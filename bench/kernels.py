"""`tsd bench kernels [cpu|gpu] …`: hands over to the microbenchmarks of the processor or of the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from tsd.bench.errors import UsageError

_MODULES = {"cpu": "tsd.bench.kernels_cpu", "gpu": "tsd.bench.kernels_gpu"}
_HELP = """usage: tsd bench kernels [cpu|gpu] [flags]

Times each kernel by itself. Without a word: gpu where there is an NVIDIA driver, else cpu.
`tsd bench kernels cpu --help` and `tsd bench kernels gpu --help` list the flags of each.
"""


def main(argv: Sequence[str]) -> int:
    """The exit code of the microbenchmark."""
    args = list(argv)
    if args[:1] in (["-h"], ["--help"]):
        print(_HELP, end="")
        return 0
    place = "gpu" if Path("/proc/driver/nvidia/version").exists() else "cpu"
    if args and not args[0].startswith("-"):
        place = args.pop(0)
    if place not in _MODULES:
        raise UsageError(f"kernels of {place!r}: there are cpu and gpu")
    if find_spec(_MODULES[place]) is None:
        raise UsageError(f"this build has no {place} kernel benchmarks")
    code: int = import_module(_MODULES[place]).main(args)
    return code
