"""What a measurement must name to be repeated: our version and commit, the libraries, the GPUs, and the command line.

Computed once per process. Secrets on the command line are masked. Knows nothing about requests.
"""

from __future__ import annotations

import functools
import importlib.metadata
import platform
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_LIBRARIES = ("torch", "triton", "flashinfer-python", "uvloop", "aiohttp", "xgrammar", "tokenizers")
_SECRET = ("key", "token", "secret", "password")


@functools.cache
def about() -> dict[str, Any]:
    """`version commit launch_command python libraries gpu driver cuda`; None for what cannot be known here."""
    return {
        "version": _version("tsd"),
        "commit": git_commit(Path(__file__).resolve().parents[1]),
        "launch_command": masked_command(sys.argv),
        "python": platform.python_version(),
        "libraries": {name: found for name in _LIBRARIES if (found := _version(name)) is not None},
        **_gpus(),
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def git_commit(root: Path) -> str | None:
    """The commit that a checkout at `root` is on, read from its files; None for an installed package."""
    try:
        git = root / ".git"
        if git.is_file():  # a worktree: the file names the real folder
            git = Path(git.read_text().partition("gitdir:")[2].strip())
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref:"):
            return head or None
        name = head[4:].strip()
        common = git / "commondir"
        shared = (git / common.read_text().strip()).resolve() if common.exists() else git
        if (shared / name).exists():
            return (shared / name).read_text().strip()
        for line in (shared / "packed-refs").read_text().splitlines():
            if line.endswith(f" {name}"):
                return line.split(" ", 1)[0]
    except OSError:
        return None
    return None


def masked_command(argv: Sequence[str]) -> str:
    """The command line as one would type it; the program by its name, values of secret flags as ***."""
    shown = [Path(argv[0]).name if argv else "tsd"]
    hide = False
    for word in argv[1:]:
        flag, equals, _ = word.partition("=")
        secret = flag.startswith("-") and any(part in flag.lower().split("-") for part in _SECRET)
        if hide:
            shown.append("***")
            hide = False
        elif secret and equals:
            shown.append(f"{flag}=***")
        else:
            shown.append(word)
            hide = secret
    return shlex.join(shown)


def _gpus() -> dict[str, Any]:
    """Names of the machine's GPUs, driver and the CUDA version that the driver offers."""
    nothing: dict[str, Any] = {"gpu": None, "driver": None, "cuda": None}
    try:
        import pynvml
    except ImportError:
        return nothing
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        return {
            "gpu": [str(pynvml.nvmlDeviceGetName(handle)) for handle in handles] or None,
            "driver": str(pynvml.nvmlSystemGetDriverVersion()),
            "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}",
        }
    except pynvml.NVMLError:
        return nothing
