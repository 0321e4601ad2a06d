"""`tsd version`: our version and those that a report of a fault should name."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Sequence

LIBRARIES = ("torch", "triton", "flashinfer-python", "uvloop", "aiohttp", "xgrammar", "tokenizers", "textual")


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("tsd", *LIBRARIES):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def main(argv: Sequence[str]) -> int:
    for name, version in versions().items():
        print(f"{name:<18} {version}")
    return 0
