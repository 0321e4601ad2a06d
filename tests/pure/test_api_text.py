"""Text: detokenizers, stop strings and JSON depth are pure functions of their input, however it is cut."""

from __future__ import annotations

import functools
import json
from array import array

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models

from tsd.api.errors import InvalidRequest
from tsd.api.limits import json_depth_exceeds, value_depth
from tsd.api.params import packed_ids
from tsd.api.text.detokenizer import ByteDetokenizer, ByteTable
from tsd.api.text.stops import StopMatcher
from tsd.api.text.tokenizer import PACKED_AT_A_TIME, FastTokenizer, byte_level_piece, pack

BYTES = ByteTable([bytes([value]) for value in range(256)])


def cut(text: str, sizes: list[int]) -> list[str]:
    pieces, at = [], 0
    for size in sizes:
        pieces.append(text[at : at + size])
        at += size
    return [*pieces, text[at:]]


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_bytes_over_tokens_sum_to_the_whole_decode(data: bytes) -> None:
    stream = ByteDetokenizer(BYTES)
    deltas = [stream.push(byte) for byte in data]
    assert "".join(deltas) + stream.finish() == data.decode("utf-8", "replace")


@pytest.mark.parametrize("text", ["A 世a界b", "👩‍👩‍👧 ok", "\U0001f600" * 3, "é\u0301", "Ω≈ç√"])
def test_no_delta_holds_half_a_character(text: str) -> None:
    stream = ByteDetokenizer(BYTES)
    for byte in text.encode():
        assert "�" not in stream.push(byte)
    assert stream.finish() == ""


@functools.cache
def byte_level_tokenizer() -> FastTokenizer:
    inverse = {byte_level_piece(chr(code)): chr(code) for code in range(0x180) if len(byte_level_piece(chr(code))) == 1}
    vocab = {inverse[bytes([value])]: value for value in range(256)}
    backend = tokenizers.Tokenizer(models.BPE(vocab, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|end|>"])
    return FastTokenizer(backend)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60))
def test_byte_level_agrees_with_the_tokenizers_library(text: str) -> None:
    ours = byte_level_tokenizer()
    ids = ours.encode(text)
    assert ours.decode(ids) == ours._backend.decode(list(ids)) == text.replace("<|end|>", "")


def test_special_tokens_are_text_when_asked() -> None:
    ours = byte_level_tokenizer()
    assert ours.encode("a<|end|>")[-1] == 256
    assert 256 not in ours.encode_plain("a<|end|>")
    assert ours.decode(ours.encode_plain("a<|end|>")) == "a<|end|>"


def reference_stop(text: str, stops: list[str]) -> tuple[str, str | None]:
    """One character at a time: the first moment at which some stop string is complete."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            best = max(found, key=len)
            return text[: end - len(best)], best
    return text, None


@settings(max_examples=500, deadline=None)
@given(
    st.text("abc", max_size=40),
    st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=4),
    st.lists(st.integers(0, 5), max_size=30),
)
def test_stops_do_not_depend_on_chunking(text: str, stops: list[str], sizes: list[int]) -> None:
    matcher = StopMatcher(tuple(stops))
    got = ""
    for piece in cut(text, sizes):
        got += matcher.push(piece)
        assert reference_stop(text, stops)[0].startswith(got)
    if matcher.matched is None:
        got += matcher.finish()
    assert (got, matcher.matched) == reference_stop(text, stops)


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.text('[]{}"\\', max_size=5),
        lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text('"\\[', max_size=2), v, max_size=3),
        max_leaves=20,
    )
)
def test_depth_scan_agrees_with_the_parsed_value(value: object) -> None:
    body = json.dumps(value).encode()
    depth = value_depth(value, 100)
    if depth:
        assert json_depth_exceeds(body, depth - 1)
    assert not json_depth_exceeds(body, depth)


@settings(deadline=None)
@given(st.binary(max_size=100))
def test_depth_scan_survives_garbage(body: bytes) -> None:
    json_depth_exceeds(b"[" * 70 + body, 64)


def test_depth_scan_is_linear() -> None:
    for body in (b'"' + b'\\"' * 300_000, b"[]" * 500_000, b'{"":' * 200_000, b'"' * 500_001):
        json_depth_exceeds(b"[" * 60 + body, 64)


@given(st.lists(st.integers(0, 2**31 - 1), max_size=50), st.integers(0, 3))
def test_ids_are_packed_in_parts(ids: list[int], parts: int) -> None:
    whole = ids + [7] * (parts * PACKED_AT_A_TIME)
    assert pack(whole) == packed_ids("prompt", whole, 2**31) == array("i", whole)


@pytest.mark.parametrize("bad", [True, 1.0, "1", None, -1, 100, 2**40])
def test_what_is_no_id_is_named(bad: object) -> None:
    for ids in ([bad], [5] * PACKED_AT_A_TIME + [bad]):
        with pytest.raises(InvalidRequest) as caught:
            packed_ids("prompt", ids, 100)
        assert caught.value.param == "prompt"
