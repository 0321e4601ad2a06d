"""What befalls a life besides bad luck with single rows and copies: short memory, a full disk, the death of the engine.

Decides when, and how much; `world` does it.
"""

from __future__ import annotations

import random

from tsd.scheduler.simulation.knobs import Knobs

NEVER = 1 << 62


class Faults:
    """Times are counted in turns."""

    def __init__(self, seed: int, knobs: Knobs, num_pages: int, host_pages: int, *, disk: bool) -> None:
        self._rng = random.Random(seed)
        self._num_pages = num_pages
        self._host_pages = host_pages
        self._squeeze_turns = knobs.squeeze_turns
        self._disk_turns = knobs.disk_turns if disk else 0
        self._crash_turns = knobs.crash_turns
        self._squeeze_at = self._after(0, self._squeeze_turns)
        self._disk_at = self._after(0, self._disk_turns)
        self._crash_at = self._after(0, self._crash_turns)
        self.soonest = 0
        self._note()

    def _after(self, turn: int, mean: int) -> int:
        return turn + 1 + self._rng.randrange(2 * mean) if mean else NEVER

    def _note(self) -> None:
        self.soonest = min(self._squeeze_at, self._disk_at, self._crash_at)

    def squeeze(self, turn: int) -> tuple[int, int] | None:
        """How many device and host pages are to be withheld from now on; None leaves it as it is."""
        if turn < self._squeeze_at:
            return None
        self._squeeze_at = self._after(turn, self._squeeze_turns)
        self._note()
        if self._rng.random() < 0.4:
            return (0, 0)
        return (self._rng.randrange(self._num_pages + 1), self._rng.randrange(self._host_pages + 1))

    def disk_turns(self, turn: int) -> bool:
        """Whether the disk fills up, or has room again."""
        if turn < self._disk_at:
            return False
        self._disk_at = self._after(turn, self._disk_turns)
        self._note()
        return True

    def crashes(self, turn: int) -> bool:
        """Whether the engine dies now."""
        if turn < self._crash_at:
            return False
        self._crash_at = self._after(turn, self._crash_turns)
        self._note()
        return True
