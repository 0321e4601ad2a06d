"""`agentic`: sessions that share a long prefix (system prompt and tools) and resend their history each turn."""

from __future__ import annotations

from tsd.bench.datasets import DatasetOptions
from tsd.bench.plan import Kind, Session, Turn
from tsd.bench.store import PieceStore

PREFIX, NEW, OUTPUT, TURNS = 3000, 200, 64, 4


def kind(options: DatasetOptions) -> Kind | None:
    return None


def build(options: DatasetOptions, store: PieceStore) -> list[Session]:
    """Turn t holds: prefix, then t+1 times the new tokens, and between them the t answers before."""
    prefix = options.prefix_len
    output = options.output_len if options.output_len is not None else OUTPUT
    sessions = []
    for number in range(options.num_prompts):
        turns = []
        for turn in range(options.turns or TURNS):
            pieces = [store.random("prefix", prefix, "system")] if turn == 0 and prefix else []
            pieces.append(store.random(f"session {number} turn {turn}", options.input_len))
            length = prefix + (turn + 1) * options.input_len + turn * output
            turns.append(Turn(pieces, output, length, options.turn_wait_s))
        sessions.append(Session(turns))
    return sessions
