"""The lint of our own rules finds planted breaches; the package list holds every package there is."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load_lint() -> ModuleType:
    spec = importlib.util.spec_from_file_location("house_lint", ROOT / "scripts" / "lint.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


lint = load_lint()


@pytest.mark.parametrize(
    ("path", "source", "words"),
    [
        ("kernels/a.py", "import tsd.engine.batch", "must not import tsd.engine"),
        ("scheduler/a.py", "from tsd import engine", "must not import tsd.engine"),
        ("cache/a.py", "from tsd.scheduler.types import Move", "must not import"),
        ("console/a.py", "from tsd.api import limits", "must not import"),
        ("scheduler/a.py", "import torch", "nothing about torch"),
        ("api/a.py", "def f():\n    import pickle", "pickle is never used"),
        ("engine/a.py", "eval('1')", "eval() is never used"),
        ("engine/a.py", "import torch\ntorch.load('f')", "weights_only=True"),
        ("engine/a.py", "import torch\ntorch.load('f', weights_only=False)", "weights_only=True"),
    ],
)
def test_planted_breaches_are_found(path: str, source: str, words: str) -> None:
    found = list(lint.check_file(path, source))
    assert len(found) == 1 and words in found[0].text


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("engine/a.py", "import torch\nfrom tsd.kernels import registry\ntorch.load('f', weights_only=True)"),
        ("api/a.py", "from tsd.engine.protocol import Submit"),
        ("bench/scheduler.py", "from tsd.scheduler.core import Scheduler"),
    ],
)
def test_what_is_allowed_passes(path: str, source: str) -> None:
    assert not list(lint.check_file(path, source))


def test_the_tree_keeps_the_rules() -> None:
    assert [f"{b.path}:{b.line}: {b.text}" for b in lint.check(ROOT)] == []


def test_every_package_is_listed_for_the_wheel() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = set(project["tool"]["setuptools"]["packages"])
    folders = project["tool"]["setuptools"]["package-dir"].values()
    found = {
        "tsd." + ".".join(init.parent.relative_to(ROOT).parts)
        for folder in folders
        for init in (ROOT / folder).rglob("__init__.py")
    }
    assert listed == found
