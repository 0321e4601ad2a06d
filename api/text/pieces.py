"""Cuts a long text where its tokenizer cuts it anyway, so that it can be encoded piece by piece.

One call for a text of megabytes makes millions of tokens at once, and taking them out of the library holds the
interpreter for as long. A cut is made after a single newline between a visible character and a letter, and only if
the tokenizer's own pre-tokenizer, shown the neighbourhood, cuts there too and gives the same parts on either side.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import tokenizers

PIECE = 128 * 1024
"""Characters, about."""
NEIGHBOURHOOD = 256
MOST_TRIES = 8
_LINE = re.compile(r"[!-~]\n(?=[A-Za-z])")


class Cutter:
    """Of one tokenizer whose stretches do not depend on each other (`is_separable`). Any thread may ask."""

    def __init__(self, backend: tokenizers.Tokenizer, size: int = PIECE) -> None:
        self._pre = backend.pre_tokenizer
        self._size = size
        added = backend.get_added_tokens_decoder().values()
        self._works = self._pre is not None and not any("\n" in token.content[:-1] for token in added)

    def pieces(self, text: str) -> Iterator[str]:
        """Joined they are `text`. A piece is longer than it should be where no safe cut is found."""
        start = low = 0
        while self._works and len(text) - low > 2 * self._size:
            low += self._size
            cut = self._cut(text, low, low + self._size)
            if cut is not None:
                yield text[start:cut]
                start = low = cut
        yield text[start:] if start else text

    def _cut(self, text: str, low: int, high: int) -> int | None:
        for tries, line in enumerate(_LINE.finditer(text, low, high)):
            cut = line.end()
            if self._is_cut(text[max(0, cut - NEIGHBOURHOOD) : cut], text[cut : cut + NEIGHBOURHOOD]):
                return cut
            if tries == MOST_TRIES:
                break
        return None

    def _is_cut(self, before: str, after: str) -> bool:
        def parts(text: str) -> list[str]:
            return [part for part, _ in self._pre.pre_tokenize_str(text)]

        return parts(before + after) == parts(before) + parts(after)
