"""Makes tests/support importable and offers what several folders need."""

from __future__ import annotations

import asyncio
import inspect
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


RUNNER = pytest.StashKey[asyncio.Runner]()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs the asynchronous tests of other people's suites, in one loop: their clients outlive a test. Ours run
    themselves."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    runner = pyfuncitem.session.stash.setdefault(RUNNER, asyncio.Runner())
    runner.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}))
    return True


def pytest_sessionfinish(session: pytest.Session) -> None:
    runner = session.stash.get(RUNNER, None)
    if runner is not None:
        runner.close()
