"""Makes tests/support importable and offers what several folders need."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def default_model() -> str:
    """The default model's file; the test is skipped where it has not been fetched."""
    from tsd.console import default_model as model

    path = Path(os.environ.get("TSD_TEST_MODEL") or model.path())
    if not path.exists():
        pytest.skip("the default model is not there: run `tsd model`")
    return str(path)
