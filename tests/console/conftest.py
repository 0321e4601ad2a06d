"""The console's tests see one time zone and one kind of terminal, whatever the machine."""

from __future__ import annotations

import time

import pytest


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch: pytest.MonkeyPatch):
    for name in ("NO_COLOR", "TSD_ADMIN_KEY", "TSD_URL", "TSD_CONSOLE_THEME", "TEXTUAL_DRIVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()
