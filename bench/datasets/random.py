"""`random`: independent prompts of random tokens, optionally behind a shared prefix."""

from __future__ import annotations

import random as random_module

from tsd.bench.datasets import DatasetOptions
from tsd.bench.plan import Kind, Session, Turn
from tsd.bench.store import PieceStore

_DEFAULT_OUTPUT = 128


def kind(options: DatasetOptions) -> Kind | None:
    return None


def build(options: DatasetOptions, store: PieceStore) -> list[Session]:
    """`range_ratio` r draws each length evenly from [len·(1−r), len·(1+r)]."""
    source = random_module.Random(f"{options.seed}:lengths")

    def draw(length: int) -> int:
        spread = int(length * options.range_ratio)
        return max(1, source.randint(length - spread, length + spread))

    sessions = []
    output = options.output_len if options.output_len is not None else _DEFAULT_OUTPUT
    for number in range(options.num_prompts):
        length = draw(options.input_len)
        pieces = [store.random("prefix", options.prefix_len, "system")] if options.prefix_len else []
        pieces.append(store.random(f"prompt {number}", length))
        sessions.append(Session([Turn(pieces, draw(output), options.prefix_len + length)]))
    return sessions
