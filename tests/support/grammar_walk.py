"""Random members of a grammar's language over single bytes: what a model could say under the mask."""

from __future__ import annotations

import random

import torch

from tsd.engine.grammar import GrammarBackend, GrammarRow
from tsd.engine.protocol import Grammar, Vocabulary

END = 256
SIZE = 257
BYTES = Vocabulary([*(bytes([value]) for value in range(256)), b""], (END,))
_SHIFTS = torch.arange(32)
_CLOSING = frozenset(b'"}]>)')


def byte_backend() -> GrammarBackend:
    return GrammarBackend(BYTES, SIZE)


def allowed(backend: GrammarBackend, row: GrammarRow) -> list[int]:
    """The tokens that the mask lets through."""
    mask = backend.bitmask(2)
    mask.fill_(-1)
    row.fill(mask, 1)
    bits = (mask[1].view(torch.int32).unsqueeze(1) >> _SHIFTS) & 1
    return [int(token) for token in bits.flatten()[: backend.vocab_size].nonzero().flatten()]


def walk(
    backend: GrammarBackend,
    grammar: Grammar,
    chooser: random.Random,
    *,
    begin: str = "",
    hurry: int = 40,
    most: int = 600,
) -> str | None:
    """`begin` and what follows it by chance; after `hurry` bytes the shortest way out is preferred. None where the
    end was not reached."""
    row = backend.row(grammar)
    said = bytearray(begin.encode())
    for byte in said:
        if not row.accept(byte):
            raise AssertionError(f"the grammar does not allow {bytes(said)!r}")
    for count in range(most):
        choices = allowed(backend, row)
        if END in choices and (count > hurry or len(choices) == 1 or chooser.random() < 0.2):
            return said.decode()
        token = _pick([token for token in choices if token != END], chooser, count > hurry)
        assert row.accept(token)
        said.append(token)
    return None


def _pick(choices: list[int], chooser: random.Random, hurried: bool) -> int:
    if hurried:
        closing = [token for token in choices if token in _CLOSING]
        if closing:
            return chooser.choice(closing)
    plain = [token for token in choices if 32 < token < 127] if len(choices) > 40 else choices
    if hurried and len(plain) > 1:
        plain = [token for token in plain if token not in b" \t\r\n"] or plain
    return chooser.choice(plain or choices)
