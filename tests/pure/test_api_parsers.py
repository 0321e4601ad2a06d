"""Parsers: what each dialect means, and that no cut of a text into chunks changes it."""

# ruff: noqa: E501 (the texts are as models write them)

from __future__ import annotations

import itertools
import json
import os
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tsd.api.output import Delta
from tsd.api.parsers.output import ToolSet
from tsd.api.parsers.pythonic import parse_calls
from tsd.api.parsers.reasoning import TagSplitter
from tsd.api.parsers.registry import REASONING, TOOLS, detect, tool_parser

SPLITS = int(os.environ.get("TSD_SPLITS", "1000"))
SCHEMAS: dict[str, dict[str, Any]] = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "tags": {"type": "array"}},
    },
    "now": {"type": "object", "properties": {}},
}
CALL = '{"name": "get_weather", "arguments": {"city": "Paris}", "days": 3}}'
DS = "<｜tool▁call▁begin｜>"

# dialect → texts with two calls: get_weather with a city (and days 3), then now.
TWO_CALLS = {
    "hermes": f'Sure.\n<tool_call>\n{CALL}\n</tool_call>\n<tool_call>\n{{"name": "now", "arguments": {{}}}}\n</tool_call>',
    "qwen3_coder": (
        "Sure.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis}\n</parameter>\n<parameter=days>\n3\n"
        "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>"
    ),
    "llama3_json": '{"name": "get_weather", "parameters": {"city": "Paris}", "days": 3}}; {"name": "now", "parameters": {}}',
    "json": f'[{CALL}, {{"arguments": {{}}, "name": "now"}}]',
    "pythonic": '[get_weather(city="Paris}", days=3), now()]',
    "mistral": f'Sure.[TOOL_CALLS][{CALL}, {{"name": "now", "arguments": {{}}}}]',
    "deepseek_v3": (
        f'Sure.<｜tool▁calls▁begin｜>{DS}function<｜tool▁sep｜>get_weather\n```json\n{{"city": "Paris}}", "days": 3}}\n```'
        f"<｜tool▁call▁end｜>\n{DS}function<｜tool▁sep｜>now\n```json\n{{}}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "deepseek_v31": (
        f'Sure.<｜tool▁calls▁begin｜>{DS}get_weather<｜tool▁sep｜>{{"city": "Paris}}", "days": 3}}<｜tool▁call▁end｜>'
        f"{DS}now<｜tool▁sep｜>{{}}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "deepseek_v32": (
        'Sure.<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">Paris}'
        '</｜DSML｜parameter>\n<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        '<｜DSML｜invoke name="now">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>'
    ),
    "kimi_k2": (
        "Sure.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        '{"city": "Paris}", "days": 3}<|tool_call_end|><|tool_call_begin|>functions.now:1'
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"
    ),
    "glm45": (
        "Sure.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris}</arg_value>\n<arg_key>days</arg_key>\n"
        "<arg_value>3</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>"
    ),
    "glm47": (
        "Sure.<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris}</arg_value><arg_key>days</arg_key>"
        "<arg_value>3</arg_value></tool_call><tool_call>now</tool_call>"
    ),
    "minimax_m2": (
        'Sure.\n<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris}</parameter>\n'
        '<parameter name="days">3</parameter>\n</invoke>\n<invoke name="now">\n</invoke>\n</minimax:tool_call>'
    ),
    "gpt_oss": (
        "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
        '<|constrain|>json<|message|>{"city": "Paris}", "days": 3}<|call|><|start|>assistant to=functions.now'
        "<|channel|>commentary<|message|>{}<|call|><|start|>assistant<|channel|>final<|message|>Sure."
    ),
}  # fmt: skip


MARKS = (
    *("<tool_call>", "</tool_call>", "name", "now", "<function=", "[TOOL_CALLS]", "<arg_key>", "<|channel|>"),
    *("<|message|>", "final", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"),
)


class Result:
    def __init__(self) -> None:
        self.content = self.reasoning = ""
        self.calls: list[list[str]] = []

    def add(self, delta: Delta) -> None:
        self.content += delta.content
        self.reasoning += delta.reasoning
        for call in delta.calls:
            if call.index == len(self.calls):
                assert call.id and call.name
                self.calls.append([call.id, call.name, ""])
            else:
                assert not call.id and not call.name
            self.calls[call.index][2] += call.arguments

    def key(self) -> tuple[Any, ...]:
        return self.content, self.reasoning, [call[1:] for call in self.calls]


def parse(dialect: str, pieces: list[str], single: bool = False, schemas: Any = SCHEMAS) -> Result:
    numbers = itertools.count()
    parser = tool_parser(dialect, ToolSet(schemas, single, lambda: f"call_{next(numbers)}"))
    result = Result()
    for piece in pieces:
        delta = Delta("", "", [])
        parser.push(piece, delta)
        result.add(delta)
    delta = Delta("", "", [])
    parser.finish(delta)
    result.add(delta)
    assert parser.called == bool(result.calls)
    return result


def cuts(text: str, sizes: list[int]) -> list[str]:
    pieces, at = [], 0
    for size in itertools.cycle(sizes or [len(text) or 1]):
        if at >= len(text):
            return pieces
        pieces.append(text[at : at + size])
        at += size
    return pieces


def test_every_dialect_has_an_example() -> None:
    assert set(TWO_CALLS) == set(TOOLS) - {"qwen"}


@pytest.mark.parametrize("dialect", TWO_CALLS)
def test_two_calls(dialect: str) -> None:
    for sizes in ([1], [3], [10_000]):
        got = parse(dialect, cuts(TWO_CALLS[dialect], sizes))
        assert [call[1] for call in got.calls] == ["get_weather", "now"]
        assert [json.loads(call[2]) for call in got.calls] == [{"city": "Paris}", "days": 3}, {}]
        assert got.content.strip() == ("Sure." if "Sure" in TWO_CALLS[dialect] else "")
    if dialect == "kimi_k2":
        assert got.calls[0][0] == "functions.get_weather:0"
    if dialect == "gpt_oss":
        assert got.reasoning == "Think."


@pytest.mark.parametrize("dialect", TWO_CALLS)
def test_a_single_call_is_enforced(dialect: str) -> None:
    got = parse(dialect, cuts(TWO_CALLS[dialect], [2]), single=True)
    assert [call[1] for call in got.calls] == ["get_weather"]


@pytest.mark.parametrize("dialect", TWO_CALLS)
def test_unknown_tools_are_text(dialect: str) -> None:
    got = parse(dialect, cuts(TWO_CALLS[dialect], [5]), schemas={"other": {}})
    assert got.calls == []
    assert "Paris}" in got.content


@pytest.mark.parametrize("dialect", TWO_CALLS)
def test_plain_text_passes_unchanged(dialect: str) -> None:
    for text in ("Hello.", " a < b and [1, 2] {x}\n\n", "", "\n", "{", "[", "<tool", 'say "hi"', "<"):
        assert parse(dialect, cuts(text, [1])).key() == (text, "", [])


@pytest.mark.parametrize("dialect", TWO_CALLS)
def test_every_cut_off_text_is_kept(dialect: str) -> None:
    """Cut by length anywhere: what was said of the city comes back, as arguments or as text."""
    text = TWO_CALLS[dialect]
    for end in range(text.index("Paris") + 5, len(text)):
        got = parse(dialect, cuts(text[:end], [4]))
        assert "Paris" in got.content + "".join(call[2] for call in got.calls), (end, text[:end])


@settings(max_examples=120, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("dialect", TWO_CALLS)
def test_cuts_do_not_matter(dialect: str, data: st.DataObject) -> None:
    text = TWO_CALLS[dialect]
    mangled = data.draw(st.booleans())
    if mangled:
        start = data.draw(st.integers(0, len(text)))
        stop = data.draw(st.integers(start, min(len(text), start + 12)))
        text = text[:start] + data.draw(st.sampled_from(["", "x", "<", '"', "}", "{", "]", "\n", "\\"])) + text[stop:]
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=30))
    assert parse(dialect, cuts(text, sizes)).key() == parse(dialect, [text]).key()


@pytest.mark.parametrize("dialect", TWO_CALLS)
def test_many_random_splits(dialect: str) -> None:
    """TSD_SPLITS sets how many (100,000 for the recorded run); 50 a text, most texts damaged."""
    chooser = random.Random(dialect)
    for _ in range(SPLITS // 50):
        text = TWO_CALLS[dialect]
        for _ in range(chooser.choice((0, 1, 1, 3))):
            start = chooser.randrange(len(text) + 1)
            text = (
                text[:start]
                + chooser.choice((*MARKS, "", "x", '"', "}", "{", "\\"))
                + text[start + chooser.randrange(9) :]
            )
        expected = parse(dialect, [text]).key()
        for _ in range(50):
            longest = chooser.choice((1, 4, 20, 100))
            sizes = [chooser.randint(1, longest) for _ in range(20)]
            assert parse(dialect, cuts(text, sizes)).key() == expected, (text, sizes)


@settings(max_examples=60, deadline=None)
@given(
    pieces=st.lists(st.sampled_from([*MARKS, *'{}[]":=()<>,x \n\\']), max_size=30),
)
@pytest.mark.parametrize("dialect", TWO_CALLS)
def test_garbage_is_the_same_in_any_cut(dialect: str, pieces: list[str]) -> None:
    text = "".join(pieces)
    assert parse(dialect, list(text)).key() == parse(dialect, pieces).key() == parse(dialect, [text]).key()


@pytest.mark.parametrize("dialect", TWO_CALLS)
@pytest.mark.parametrize(
    "unit", ["<tool_call>", "[", "{", '{"a":', "[TOOL_CALLS]", "<|channel|>", DS, "\\", '"', " ", "<", "(((", "f(a="]
)
def test_adversarial_text_is_linear(dialect: str, unit: str) -> None:
    text = unit * (40_000 // len(unit))
    parse(dialect, [text])
    parse(dialect, cuts(text, [7]))


def split(text: str, sizes: list[int], inside: bool = False) -> tuple[str, str]:
    splitter = TagSplitter("<think>", "</think>", inside)
    answer = reasoning = ""
    for piece in cuts(text, sizes):
        delta = Delta("", "", [])
        answer += splitter.push(piece, delta)
        reasoning += delta.reasoning
    delta = Delta("", "", [])
    answer += splitter.finish(delta)
    return reasoning + delta.reasoning, answer


@pytest.mark.parametrize(
    ("text", "inside", "reasoning", "answer"),
    [
        ("<think>\nhm\n</think>\n\nParis", False, "hm\n", "Paris"),
        ("hm</think>Paris", True, "hm", "Paris"),
        ("<think>hm</think>Paris", True, "hm", "Paris"),
        ("Hello <think>x</think>", False, "", "Hello <think>x</think>"),
        ("Hello </think>", False, "", "Hello </think>"),
        ("<think>a</think>b</think>c", False, "a", "b</think>c"),
        ("<think>cut", False, "cut", ""),
        ("<thi", False, "", "<thi"),
        ("", True, "", ""),
        ("\n\nParis", False, "", "\n\nParis"),
    ],
)
def test_reasoning(text: str, inside: bool, reasoning: str, answer: str) -> None:
    for sizes in ([1], [2], [1000]):
        assert split(text, sizes, inside) == (reasoning, answer)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<", "a", "\n", " ", "</thi", "nk>"]), max_size=12).map("".join),
    st.booleans(),
    st.lists(st.integers(1, 5), min_size=1, max_size=20),
)
def test_reasoning_does_not_depend_on_cuts(text: str, inside: bool, sizes: list[int]) -> None:
    assert split(text, sizes, inside) == split(text, [1000], inside)


def test_pythonic_literals() -> None:
    calls = parse_calls("""[a.b(x=[1, -2.5, {'k': None}], y='it\\'s' "n", z=True,), c()]""")
    assert calls is not None
    assert calls[0].arguments == {"x": [1, -2.5, {"k": None}], "y": "it'sn", "z": True}
    for bad in ("[f(1)]", "[f(a=__import__('os'))]", "[f(a=1]", "[]", "[f(a=1)] x", "[f(a=g())]", "[f(a=" + "[" * 50):
        assert parse_calls(bad) is None


def test_detection() -> None:
    assert detect("{% if tools %}<tool_call>{% endif %}<think>") == ("qwen3", "hermes")
    assert detect("<tool_call><function=") == ("", "qwen3_coder")
    assert detect("<|channel|>analysis") == ("gpt_oss", "gpt_oss")
    assert detect("plain") == ("", "")
    assert set(REASONING) >= {"deepseek_r1", "passthrough"}
