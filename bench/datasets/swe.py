"""`swe`: software-engineering agents.

A first turn of 50,000 tokens, then 800 more a turn, 10 to 15 turns, 500 tokens generated in each.
"""

from __future__ import annotations

import random

from tsd.bench.datasets import DatasetOptions
from tsd.bench.plan import Kind, Session, Turn
from tsd.bench.store import PieceStore

FIRST, NEW, OUTPUT = 50_000, 800, 500
_FEWEST, _MOST = 10, 15


def kind(options: DatasetOptions) -> Kind | None:
    return None


def build(options: DatasetOptions, store: PieceStore) -> list[Session]:
    """`input_len` is the first turn's length; `turns` fixes the number of turns."""
    source = random.Random(f"{options.seed}:turns")
    output = options.output_len if options.output_len is not None else OUTPUT
    sessions = []
    for number in range(options.num_prompts):
        turns, length = [], 0
        for turn in range(options.turns or source.randint(_FEWEST, _MOST)):
            new = options.input_len if turn == 0 else NEW
            length += new + (output if turn else 0)
            piece = store.random(f"session {number} turn {turn}", new)
            turns.append(Turn([piece], output, length, options.turn_wait_s))
        sessions.append(Session(turns))
    return sessions
