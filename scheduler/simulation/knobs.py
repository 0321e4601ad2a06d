"""How wild a simulated life is: chances and sizes. Knows nothing about how they are used."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Knobs:
    """Chances are in parts of 1024 a turn (or an item); the rest are sizes and mean numbers of turns (0: never)."""

    vocab: int = 50
    live: int = 16
    """Requests that clients keep alive."""
    submit: int = 512
    abort: int = 8
    deadline: int = 32
    fail_row: int = 2
    fail_move: int = 32
    rot: int = 16
    land: int = 600
    layers: int = 256
    """That a load-back which is not done reports its first layers."""
    too_long: int = 8
    salt: int = 64
    priority: int = 128
    max_delay: int = 12
    tail: int = 24
    output: int = 90
    patience: int = 500
    """Turns without any progress that count as a hang."""
    check_every: int = 1
    squeeze_turns: int = 0
    """Between changes of how many pages are withheld from the scheduler."""
    disk_turns: int = 0
    """Between the disk's filling up and having room again."""
    crash_turns: int = 0
    """Between deaths of the engine process."""
