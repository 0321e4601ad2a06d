"""Encodes long texts stretch by stretch between special tokens, and remembers the stretches.

An agent sends its whole history again with each turn; all but the newest messages were encoded before. Special
tokens cut the text before anything else in the tokenizers library, so that (for tokenizers whose stretches do not
depend on their neighbours: see `is_separable`) the joined ids equal those of the whole text.
"""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from tsd.api.text.tokenizer_parts import TokenizerPart

REMEMBERED_CHARACTERS = 16 * 1024 * 1024
SHORTEST = 64
"""Shorter stretches are not worth remembering."""


def is_separable(part: TokenizerPart, added: dict[int, Any]) -> bool:
    """Byte-level pre-tokenization without a prefix space, and special tokens that take no white space with them."""
    pre = part.pre_tokenizer
    parts = [] if pre is None else (pre.pretokenizers or [pre])
    levels = [item for item in parts if item.type == "ByteLevel"]
    if not levels or any(item.add_prefix_space for item in levels):
        return False
    return not any(
        token.special and (token.lstrip or token.rstrip or token.single_word or token.normalized)
        for token in added.values()
    )


class StretchCache:
    """Least recently used out, by characters. Any thread may ask."""

    def __init__(self, encode: Callable[[str], array[int]]) -> None:
        self._encode = encode
        self._known: OrderedDict[str, array[int]] = OrderedDict()
        self._characters = 0
        self._lock = threading.Lock()

    def encode(self, stretch: str) -> array[int]:
        with self._lock:
            known = self._known.get(stretch)
            if known is not None:
                self._known.move_to_end(stretch)
                return known
        found = self._encode(stretch)
        if len(stretch) >= SHORTEST:
            self._remember(stretch, found)
        return found

    def _remember(self, stretch: str, ids: array[int]) -> None:
        with self._lock:
            if stretch not in self._known:
                self._characters += len(stretch)
            self._known[stretch] = ids
            while self._characters > REMEMBERED_CHARACTERS:
                old, _ = self._known.popitem(last=False)
                self._characters -= len(old)
