"""Grammars and their rows: whatever is sampled under the mask is in the language, and history alone rebuilds a row."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from support.grammar_walk import allowed

from tsd.engine.grammar import GrammarBackend, GrammarError, GrammarRow
from tsd.engine.protocol import Grammar, Vocabulary

END = 256
WORDS = [b'{"', b'":', b"true", b"null", b"ab", b"}}", b"12", b', "']
UNICODE = ["é", "☀", "🎉", "ß☀", "🎉🎉é", "plain words"]
VOCABULARY = Vocabulary([*(bytes([value]) for value in range(256)), b"", *WORDS], (END,))
SIZE = 300
WIDE = Vocabulary([*VOCABULARY.pieces, *(text.encode() for text in UNICODE)], (END,))
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer"},
        "code": {"type": "string", "pattern": "^a.[^b]*$"},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
        "next": {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"x": {"type": "boolean"}}}]},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def is_json(text: str) -> bool:
    return isinstance(json.loads(text), dict)


def fits_schema(text: str) -> bool:
    jsonschema.validate(json.loads(text), SCHEMA)
    return True


CASES: list[tuple[Grammar, Callable[[str], Any]]] = [
    (Grammar("json_schema", json.dumps(SCHEMA)), fits_schema),
    (Grammar("json_object", ""), is_json),
    (Grammar("regex", "[a-f]{2,6}-(x|yy)+"), re.compile("[a-f]{2,6}-(x|yy)+").fullmatch),
    (Grammar("ebnf", 'root ::= "<" item ">"\nitem ::= [0-9] | item [0-9]'), re.compile("<[0-9]+>").fullmatch),
    (Grammar("choice", json.dumps(['a "b"', "ü\n", "a\\c"])), lambda text: text in ('a "b"', "ü\n", "a\\c")),
]


@pytest.fixture(scope="module")
def backend() -> GrammarBackend:
    return GrammarBackend(VOCABULARY, SIZE)


def sample(backend: GrammarBackend, row: GrammarRow, chooser: random.Random, most: int = 400) -> list[int]:
    """A random member of the language, hurried towards its end."""
    tokens: list[int] = []
    while len(tokens) < most:
        choices = allowed(backend, row)
        if END in choices and (len(tokens) > 30 or chooser.random() < 0.3):
            token = END
        else:
            closing = [token for token in choices if chr(token if token < 256 else 0) in '"}],>-'] or choices
            ascii_only = [token for token in choices if token < 128] or choices
            token = chooser.choice(closing if len(tokens) > 30 else ascii_only)
        assert row.accept(token)
        tokens.append(token)
        if token == END:
            break
    return tokens


def text_of(tokens: list[int]) -> str:
    return b"".join(VOCABULARY.pieces[token] for token in tokens).decode()


@pytest.mark.parametrize(("grammar", "fits"), CASES, ids=[case[0].kind for case in CASES])
def test_what_is_sampled_is_in_the_language(
    backend: GrammarBackend, grammar: Grammar, fits: Callable[[str], Any]
) -> None:
    done = 0
    for seed in range(20):
        row = backend.row(grammar)
        tokens = sample(backend, row, random.Random(seed))
        if tokens[-1] == END:
            done += 1
            assert row.finished and fits(text_of(tokens))
    assert done >= 10


@pytest.mark.parametrize("most", [1, 2, 11, 100, 5000])
def test_a_string_ends_at_its_very_length(most: int) -> None:
    """In characters, however many bytes or tokens they are written with."""
    backend = GrammarBackend(WIDE, len(WIDE.pieces))
    grammar = Grammar("json_schema", json.dumps({"type": "string", "minLength": most - 1, "maxLength": most}))
    lengths = {257 + len(WORDS) + number: len(text) for number, text in enumerate(UNICODE)}
    lengths |= {257 + WORDS.index(b"ab"): 2, 257 + WORDS.index(b"true"): 4, ord("x"): 1}
    chooser = random.Random(most)
    row = backend.row(grammar)
    assert row.accept(ord('"'))
    left, said = most, b""
    while left:
        choices = set(allowed(backend, row))
        if left < 15 or chooser.random() < 0.01:
            assert {token for token in lengths if token in choices} == {t for t, n in lengths.items() if n <= left}
            assert (ord('"') in choices) == (left == 1)
            assert choices.isdisjoint((*range(32), ord("\\"), END))
        token = chooser.choice([token for token, length in lengths.items() if length <= left])
        if WIDE.pieces[token] == "é".encode():  # byte by byte, too
            assert row.accept(WIDE.pieces[token][0]) and ord('"') not in allowed(backend, row)
            assert row.accept(WIDE.pieces[token][1])
        else:
            assert row.accept(token)
        left -= lengths[token]
        said += WIDE.pieces[token]
    assert len(said.decode()) == most
    assert allowed(backend, row) == [ord('"')]


def test_structural_tags_constrain_only_inside(backend: GrammarBackend) -> None:
    tag = {"type": "tag", "begin": "<f>", "end": "</f>", "content": {"type": "regex", "pattern": "[0-9]+"}}
    form = {"type": "triggered_tags", "triggers": ["<f>"], "tags": [tag]}
    row = backend.row(Grammar("structural_tag", json.dumps({"type": "structural_tag", "format": form})))
    for token in b"free text <f":
        assert token in allowed(backend, row) and row.accept(token)
    assert row.accept(ord(">"))
    assert {token for token in allowed(backend, row) if token < 256} == set(b"0123456789")
    for token in b"12</f> and on":
        assert row.accept(token)
    assert END in allowed(backend, row)


@pytest.mark.parametrize(
    ("schema", "before"),
    [
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, ("[", "[1", "[1,")),
        ({"type": "array", "prefixItems": [{"type": "boolean"}], "items": False}, ("[", "[true")),
        ({"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]}, ("{", '{"a"', '{"a":null')),
        ({"type": "object"}, ("{", '{"a":[', '{"a":[1', '{"a":{')),
    ],
)  # fmt: skip
def test_white_space_comes_to_an_end(backend: GrammarBackend, schema: dict[str, Any], before: tuple[str, ...]) -> None:
    """A small model left free in it writes blank lines up to its limit."""
    for text in before:
        for repeated in ("\n", " ", "\t", "\n ", "\n\t"):
            row = backend.row(Grammar("json_schema", json.dumps(schema)))
            assert all(row.accept(token) for token in text.encode())
            assert not all(row.accept(token) for token in (repeated * 3).encode()), (text, repeated)


def test_a_row_is_its_history(backend: GrammarBackend) -> None:
    grammar = CASES[0][0]
    tokens = sample(backend, backend.row(grammar), random.Random(3))
    row = backend.row(grammar)
    for position, token in enumerate(tokens[:-1]):
        assert allowed(backend, backend.row(grammar, tokens[:position])) == allowed(backend, row)
        row.accept(token)
    after = allowed(backend, row)
    row.rollback(4)
    row.replay(tokens[-5:-1])
    assert allowed(backend, row) == after


def test_constraint_begins_after_reasoning(backend: GrammarBackend) -> None:
    grammar = Grammar("regex", "[0-9]+", True, (ord("<"), ord(">")))
    row = backend.row(grammar)
    assert len(allowed(backend, row)) == SIZE and not row.constrained
    for token in b"think <x <":
        assert row.accept(token)
    assert not row.constrained
    row.accept(ord(">"))
    assert row.constrained and set(allowed(backend, row)) == set(b"0123456789") | {256 + 1 + WORDS.index(b"12")}


def test_a_token_against_the_mask_breaks_the_row_only(backend: GrammarBackend) -> None:
    row = backend.row(Grammar("regex", "a"))
    assert not row.accept(ord("b")) and row.broken and not row.accept(ord("a"))


def test_special_tokens_are_never_allowed(backend: GrammarBackend) -> None:
    row = backend.row(Grammar("regex", ".*"))
    assert set(range(len(VOCABULARY.pieces), SIZE)).isdisjoint(allowed(backend, row))


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar("json_schema", '{"type": "strin"}'),
        Grammar("json_schema", "{"),
        Grammar("regex", "["),
        Grammar("ebnf", "root ::= nothing"),
        Grammar("structural_tag", "{}"),
        Grammar("poem", "x"),
    ],
)
def test_bad_grammars_are_our_errors(backend: GrammarBackend, grammar: Grammar) -> None:
    with pytest.raises(GrammarError) as caught:
        backend.compile(grammar)
    assert "/" not in str(caught.value)
