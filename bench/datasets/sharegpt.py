"""`sharegpt`: one JSON list of conversations, each a list of {"from": "human"|"gpt", "value": text}.

The human turns are sent in order; the answers in the file give only how long an answer may be (about 4
tokens to 3 words).
"""

from __future__ import annotations

import json
import random

from tsd.bench.datasets import DatasetOptions
from tsd.bench.errors import DatasetError
from tsd.bench.plan import Kind, Session, Turn
from tsd.bench.store import PieceStore

_HUMAN = ("human", "user")
_FEWEST_TOKENS, _MOST_TOKENS = 4, 1024


def kind(options: DatasetOptions) -> Kind | None:
    return "text"


def _load(path: str) -> list[object]:
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except OSError as error:
        raise DatasetError(path, None, error.strerror or str(error)) from None
    except json.JSONDecodeError as error:
        raise DatasetError(path, error.lineno, error.msg) from None
    except UnicodeDecodeError as error:
        raise DatasetError(path, None, f"not UTF-8 text ({error.reason} at byte {error.start})") from None
    if not isinstance(value, list):
        raise DatasetError(path, 1, "not a JSON list of conversations")
    return value


def _rounds(path: str, number: int, entry: object) -> list[tuple[str, str]]:
    """(question, answer) pairs of one conversation."""
    lines = entry.get("conversations", entry.get("conversation")) if isinstance(entry, dict) else None
    if not isinstance(lines, list):
        raise DatasetError(path, None, f"conversation {number} has no list `conversations`")
    rounds, question = [], None
    for line in lines:
        if (
            not isinstance(line, dict)
            or not isinstance(line.get("from"), str)
            or not isinstance(line.get("value"), str)
        ):
            raise DatasetError(path, None, f'conversation {number} has a line that is not {{"from", "value"}}')
        if line["from"] in _HUMAN:
            question = line["value"]
        elif question is not None:
            rounds.append((question, line["value"]))
            question = None
    return rounds


def build(options: DatasetOptions, store: PieceStore) -> list[Session]:
    """One session a conversation, in an order drawn from the seed; `turns` (default 1) human turns of each."""
    if options.path is None:
        raise DatasetError("sharegpt", None, "this data set needs --dataset-path FILE")
    conversations = _load(options.path)
    numbered = [(number, _rounds(options.path, number, entry)) for number, entry in enumerate(conversations)]
    usable = [rounds for _, rounds in numbered if rounds]
    random.Random(f"{options.seed}:order").shuffle(usable)
    sessions: list[Session] = []
    for rounds in usable:
        if len(sessions) >= options.num_prompts:
            break
        turns = []
        for question, answer in rounds[: options.turns or 1]:
            guess = min(_MOST_TOKENS, max(_FEWEST_TOKENS, len(answer.split()) * 4 // 3))
            output = options.output_len if options.output_len is not None else guess
            turns.append(Turn([store.text(question)], output, 0, options.turn_wait_s))
        if turns[0].pieces and (options.max_input_len is None or len(rounds[0][0].split()) <= options.max_input_len):
            sessions.append(Session(turns))
    return sessions
