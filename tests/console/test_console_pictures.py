"""The README's pictures are those of this console."""

from __future__ import annotations

import asyncio
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "console" / "screenshots"


def script():
    loader = SourceFileLoader("screenshots_script", str(ROOT / "scripts" / "screenshots"))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


PICTURES = script()


@pytest.mark.parametrize("name", ["overview.svg", "pages.svg", "confirm.svg"])
def test_a_picture_is_up_to_date(name):
    now = asyncio.run(PICTURES.picture(name))
    assert now == (FOLDER / name).read_text(encoding="utf-8"), "run scripts/screenshots and look at the pictures"


def test_the_readme_shows_pictures_that_exist_and_no_others_are_kept():
    readme = (ROOT / "console" / "README.md").read_text(encoding="utf-8")
    kept = {path.name for path in FOLDER.glob("*.svg")}
    assert kept == set(PICTURES.PICTURES)
    for name in ("overview", "pages", "requests", "events", "kernels", "confirm", "help"):
        assert f"screenshots/{name}.svg" in readme
