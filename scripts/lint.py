"""Rules of the house that no general linter knows: which folder may import which, and calls that are never made.

Run as `python scripts/lint.py [ROOT]`; prints one line a breach and exits 1 when there is any.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ALLOWED: dict[str, set[str]] = {
    "kernels": set(),
    "cache": set(),
    "scheduler": {"cache"},
    "engine": {"scheduler", "cache", "kernels"},
    "api": {"engine"},
    "console": set(),
    "bench": set(),
}
"""Dependencies point one way: console → (HTTP) → api → engine → scheduler → cache; kernels is a leaf."""

COMPOSES: dict[str, set[str]] = {
    # The command line starts what it names; these are the only files of the console that see other layers.
    "console/start.py": {"api", "engine"},
    "console/serving.py": {"api", "engine"},
}

MEASURES: dict[str, set[str]] = {
    # Microbenchmarks take our own parts out of the server.
    "bench/scheduler.py": {"scheduler", "cache"},
    "bench/cache.py": {"scheduler", "cache"},
    "bench/front.py": {"api", "engine"},
    "bench/stall.py": {"api", "engine"},
    "bench/kernels_cpu.py": {"kernels", "engine"},
    "bench/kernels_gpu.py": {"kernels", "engine"},
    "bench/gpu_sites.py": {"kernels", "engine"},
    "bench/tune_gpu.py": {"kernels", "engine"},
    "bench/latency.py": {"engine", "scheduler"},
    "bench/throughput.py": {"engine", "scheduler"},
    "bench/offline.py": {"engine"},
    "bench/host_step.py": {"engine", "scheduler", "kernels"},
}

TORCHLESS = ("scheduler", "cache", "api", "console")
FORBIDDEN_MODULES = {"pickle", "dill", "marshal", "shelve", "cloudpickle"}
FORBIDDEN_CALLS = {"eval", "exec"}


class Breach(NamedTuple):
    path: str
    line: int
    text: str


def check_file(path: str, source: str) -> Iterator[Breach]:
    """Breaches of one file. `path` is relative to the root; its first part is the folder."""
    folder = path.split("/", 1)[0]
    allowed = {folder} | ALLOWED[folder] | COMPOSES.get(path, set()) | MEASURES.get(path, set())
    for node in ast.walk(ast.parse(source, path)):
        for name in _imported(node):
            line = getattr(node, "lineno", 0)
            top, _, rest = name.partition(".")
            room = rest.partition(".")[0]
            if top == "tsd" and room and room not in allowed:
                yield Breach(path, line, f"{folder} must not import {name}")
            if top == "torch" and folder in TORCHLESS:
                yield Breach(path, line, f"{folder} knows nothing about torch")
            if top in FORBIDDEN_MODULES:
                yield Breach(path, line, f"{top} is never used: what it reads can run code")
        if isinstance(node, ast.Call):
            yield from _forbidden_call(path, node)


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
        if node.module == "tsd":
            return [f"tsd.{alias.name}" for alias in node.names]
        return [node.module]
    return []


def _forbidden_call(path: str, node: ast.Call) -> Iterator[Breach]:
    function = node.func
    if isinstance(function, ast.Name) and function.id in FORBIDDEN_CALLS:
        yield Breach(path, node.lineno, f"{function.id}() is never used")
    if isinstance(function, ast.Attribute) and function.attr == "load":
        owner = function.value
        if isinstance(owner, ast.Name) and owner.id == "torch" and not _weights_only(node):
            yield Breach(path, node.lineno, "torch.load needs weights_only=True")


def _weights_only(call: ast.Call) -> bool:
    return any(
        keyword.arg == "weights_only" and isinstance(keyword.value, ast.Constant) and keyword.value.value is True
        for keyword in call.keywords
    )


def check(root: Path) -> list[Breach]:
    breaches: list[Breach] = []
    for folder in ALLOWED:
        for file in sorted((root / folder).rglob("*")):
            if file.suffix in (".py", ".pyi"):
                breaches.extend(check_file(str(file.relative_to(root)), file.read_text(encoding="utf-8")))
    return breaches


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    breaches = check(root)
    for breach in breaches:
        print(f"{breach.path}:{breach.line}: {breach.text}")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
