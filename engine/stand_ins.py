"""Imports a library without what it imports itself and does not need here.

xgrammar's core is C++, but importing its Python part also imports torch and transformers: two seconds and 200 MB for
a process that touches no tensor, half of it for one that has torch anyway. While `stand_in` is open, such a module is
an empty stand-in whose every name is an empty class. Knows nothing about grammars.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def stand_in(*names: str) -> Iterator[None]:
    """Modules that are loaded already stay as they are; stand-ins are gone afterwards, so that whoever imports the
    real module later gets it."""
    absent = [name for name in names if name not in sys.modules]
    sys.modules.update({name: _StandIn(name) for name in absent})
    try:
        yield
    finally:
        for name in [known for known, module in sys.modules.items() if isinstance(module, _StandIn)]:
            del sys.modules[name]


def keep_out_tensors() -> None:
    """For a process that uses xgrammar and no tensor: torch stays out of it for good, and transformers too. Without
    effect where this xgrammar needs more of them than names: then they are imported after all."""
    before = set(sys.modules)
    # tvm_ffi, which carries xgrammar's calls, does without torch where there is none, but not with half of one.
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        with contextlib.suppress(ImportError):
            importlib.import_module("tvm_ffi")
        sys.modules["torch"] = _StandIn("torch")
        sys.modules["transformers"] = _StandIn("transformers")
        importlib.import_module("xgrammar")
    except Exception:  # whatever it missed
        for name in set(sys.modules) - before:
            del sys.modules[name]


class _StandIn(types.ModuleType):
    """Looks like a package; any name in it is a class that takes anything and does nothing."""

    __path__: list[str] = []  # noqa: RUF012 (what makes a module a package)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda self, *values, **named: None})
