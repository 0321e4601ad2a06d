"""Builds the pieces of a plan: random token ids, random words, given texts and messages, each encoded once and shared.

Owns the choice of ids (inside the vocabulary, away from its ends where special tokens live).
Knows nothing about data sets.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import msgspec

from tsd.bench.plan import Kind, ids_piece, message_piece, text_piece

# Short common words: about one token each in the vocabularies in use.
_WORDS = """
the of and to in is that for it as was with be by on not he his but at are this have from or had an they which
one you were all her she there would their we him been has when who will no more if out so up said what its
about than into them can only other time new some could these two may first then do any like my now over such
our man even most made after also well way down should because each just those people how too little state
good very make world still see own work men day get here old life both between being under three never know
same last another while us might great year go come since against right used take states himself few house use
during without again place around small found part school hand head set night line power point home
""".split()  # noqa: SIM905


class Vocabulary(NamedTuple):
    """Ids to draw from: low ≤ id < high, and where that range came from."""

    low: int
    high: int
    source: str

    @classmethod
    def of_size(cls, size: int, source: str) -> Vocabulary:
        """Leaves out both ends, where vocabularies keep special tokens."""
        low = size // 64
        return cls(low, max(low + 1, size - size // 32), source)


class PieceStore:
    """Collects pieces; equal keys give the same piece."""

    def __init__(self, kind: Kind, vocabulary: Vocabulary, seed: int) -> None:
        self.kind = kind
        self.pieces: list[bytes] = []
        self._vocabulary = vocabulary
        self._seed = seed
        self._by_key: dict[str, int] = {}

    def random(self, key: str, tokens: int, role: str = "user") -> int:
        """A piece of `tokens` random ids (or about as many in words), the same for the same key, seed and length."""
        if key in self._by_key:
            return self._by_key[key]
        source = random.Random(f"{self._seed}:{key}")
        if self.kind == "ids":
            ids = source.choices(range(self._vocabulary.low, self._vocabulary.high), k=tokens)
            return self._add(key, ids_piece(ids))
        words = " ".join(source.choices(_WORDS, k=tokens))
        return self._add(key, self._text(words, role))

    def ids(self, ids: list[int]) -> int:
        """A piece of given ids; only in a plan of ids."""
        assert self.kind == "ids"
        return self._add(None, ids_piece(ids))

    def text(self, text: str, role: str = "user") -> int:
        """A piece of given text; not in a plan of ids."""
        assert self.kind != "ids"
        return self._add(None, self._text(text, role))

    def messages(self, messages: list[dict[str, object]]) -> int:
        """Several chat messages as one piece."""
        assert self.kind == "messages" and messages
        return self._add(None, msgspec.json.encode(messages)[1:-1])

    def _text(self, text: str, role: str) -> bytes:
        return message_piece(role, text) if self.kind == "messages" else text_piece(text + " ")

    def _add(self, key: str | None, piece: bytes) -> int:
        self.pieces.append(piece)
        if key is not None:
            self._by_key[key] = len(self.pieces) - 1
        return len(self.pieces) - 1
