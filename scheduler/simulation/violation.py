"""What the simulated world raises."""

from __future__ import annotations


class Violation(AssertionError):
    """The scheduler or the cache did something that must never happen."""
