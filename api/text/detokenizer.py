"""Token ids to text, a few at a time. The sum of the deltas is the decode of the whole, for any split.

Most vocabularies map each id to a fixed byte string (byte-level BPE, SentencePiece with byte fallback); UTF-8 is
then decoded incrementally: linear time, nothing is decoded twice. Others go through a sliding window.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Protocol

_utf8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer(Protocol):
    def push(self, token: int) -> str:
        """The text that is certain after this token; an unfinished character is held back."""

    def finish(self) -> str:
        """What is still held: an unfinished character becomes U+FFFD."""


class ByteTable:
    """Per id the bytes it stands for (empty for a skipped special) and, where they are whole characters, the text."""

    def __init__(self, pieces: Sequence[bytes], strip_first_space: bool = False) -> None:
        self.pieces = list(pieces)
        self.texts: list[str | None] = []
        for piece in self.pieces:
            try:
                self.texts.append(piece.decode())
            except UnicodeDecodeError:
                self.texts.append(None)
        self.strip_first_space = strip_first_space


class ByteDetokenizer:
    """`continues`: the text goes on after a prompt, so that a first space is kept."""

    __slots__ = ("_decoder", "_pending", "_pieces", "_strip", "_texts")

    def __init__(self, table: ByteTable, continues: bool = False) -> None:
        self._pieces = table.pieces
        self._texts = table.texts
        self._strip = table.strip_first_space and not continues
        self._pending = False
        self._decoder = _utf8("replace")

    def push(self, token: int) -> str:
        try:
            text = self._texts[token]
        except IndexError:
            return ""
        if text is None or self._pending:
            text = self._decoder.decode(self._pieces[token])
            self._pending = bool(self._decoder.getstate()[0])
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text

    def finish(self) -> str:
        self._pending = False
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For decoders that look at neighbouring tokens: decodes a window that starts at the last certain point."""

    __slots__ = ("_decode", "_known", "_window")

    _LIMIT = 32

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._known = ""

    def push(self, token: int) -> str:
        self._window.append(token)
        text = self._decode(self._window)
        if (text.endswith("�") and len(self._window) < self._LIMIT) or len(text) <= len(self._known):
            return ""
        delta = text[len(self._known) :]
        # Keep one token of context: a decoder's spacing depends on the token before.
        self._window = self._window[-1:]
        self._known = self._decode(self._window)
        return delta

    def finish(self) -> str:
        text = self._decode(self._window)
        return text[len(self._known) :]
