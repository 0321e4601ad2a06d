"""`python -m tsd.kernels.flashinfer.ahead DTYPE HEAD_DIM ARCHITECTURE`: builds one module with no GPU at hand.

flashinfer asks torch about the GPU as it is imported, though its compiler needs none: in this process, which does
nothing else, torch answers for the architecture. Needs nvcc, ninja and the headers of the CUDA toolkit.
"""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

from tsd.kernels.ahead import Job
from tsd.kernels.flashinfer.library import Module, build


def job(module: Module, capability: tuple[int, int]) -> Job:
    """The same as a job among those of Triton."""
    architecture = f"{capability[0]}.{capability[1]}"
    command = [sys.executable, "-m", "tsd.kernels.flashinfer.ahead", module.dtype, str(module.head_dim), architecture]
    return Job("flashinfer", "", lambda: _run(command))


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def main(dtype: str, head_dim: str, architecture: str) -> None:
    import torch

    major, _, minor = architecture.partition(".")
    capability = (int(major), int(minor))
    os.environ.setdefault("FLASHINFER_CUDA_ARCH_LIST", f"{architecture}a")
    properties = SimpleNamespace(major=capability[0], minor=capability[1], multi_processor_count=132)
    torch.cuda.get_device_capability = lambda *_: capability  # type: ignore[assignment]
    torch.cuda.get_device_properties = lambda *_: properties  # type: ignore[assignment]
    build(Module(dtype, int(head_dim)))


if __name__ == "__main__":
    main(*sys.argv[1:])
