"""Log-probabilities in the shapes of the OpenAI dialects. Values are finite: −inf and NaN become a floor."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tsd.api.text.tokenizer import Tokenizer
from tsd.api.wire.chat import TokenLogprob, TopLogprob
from tsd.engine.protocol import TokenLogprobs

FLOOR = -9999.0


def finite(value: float) -> float:
    return value if math.isfinite(value) else FLOOR


def chat_logprobs(tokenizer: Tokenizer, tokens: Sequence[int], entries: Sequence[TokenLogprobs]) -> list[TokenLogprob]:
    found = []
    for token, entry in zip(tokens, entries, strict=True):
        piece = tokenizer.token_bytes(token)
        top = []
        for other, logprob in zip(entry.top_ids, entry.top_logprobs, strict=True):
            data = tokenizer.token_bytes(other)
            top.append(TopLogprob(data.decode("utf-8", "replace"), finite(logprob), list(data)))
        found.append(TokenLogprob(piece.decode("utf-8", "replace"), finite(entry.logprob), list(piece), top))
    return found


def token_name(tokenizer: Tokenizer, token: int) -> str:
    """Unique for a token: bytes that are not text are written out, as the completions dialect does."""
    piece = tokenizer.token_bytes(token)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


class CompletionLogprobsBuilder:
    """Columns of one choice; `take` gives those since the last call, for a stream."""

    def __init__(self, tokenizer: Tokenizer, start: int = 0) -> None:
        self._tokenizer = tokenizer
        self._offset = start
        self._columns: tuple[list[int], list[float | None], list[str], list[dict[str, float] | None]] = ([], [], [], [])

    def add(self, tokens: Sequence[int], entries: Sequence[TokenLogprobs | None]) -> None:
        offsets, logprobs, names, tops = self._columns
        for token, entry in zip(tokens, entries, strict=True):
            name = token_name(self._tokenizer, token)
            offsets.append(self._offset)
            self._offset += len(self._tokenizer.token_bytes(token).decode("utf-8", "ignore"))
            names.append(name)
            if entry is None:
                logprobs.append(None)
                tops.append(None)
                continue
            logprobs.append(finite(entry.logprob))
            top = {
                token_name(self._tokenizer, other): finite(value)
                for other, value in zip(entry.top_ids, entry.top_logprobs, strict=True)
            }
            top.setdefault(name, finite(entry.logprob))
            tops.append(top)

    def take(self) -> tuple[list[int], list[float | None], list[str], list[dict[str, float] | None]]:
        columns, self._columns = self._columns, ([], [], [], [])
        return columns
