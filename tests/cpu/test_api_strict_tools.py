"""Strict tools that a model may call or not: whatever it writes under the constraint, its calls fit their schemas."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support.byte_model import model_that_says
from support.front_server import run_async
from support.grammar_walk import byte_backend, walk

from tsd.api.output import Delta
from tsd.api.parsers.output import ToolSet
from tsd.api.parsers.registry import TOOLS, tool_parser
from tsd.api.schema_form import formed
from tsd.api.tool_grammar import CONSTRAINABLE, Tools, auto_calls
from tsd.engine.grammar import GrammarBackend
from tsd.engine.protocol import Grammar, Submit

STRICT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 6},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "unit": {"enum": ["C", "F"]},
        "where": {"$ref": "#/$defs/place"},
    },
    "required": ["city", "days", "unit", "where"],
    "additionalProperties": False,
    "$defs": {
        "place": {
            "type": "object",
            "properties": {"indoors": {"type": "boolean"}, "floor": {"type": "integer", "minimum": 0, "maximum": 9}},
            "required": ["indoors", "floor"],
            "additionalProperties": False,
        }
    },
}
SCHEMAS: dict[str, dict[str, Any]] = {"get_weather": STRICT, "get": {"type": "object", "properties": {}}}
OFFERED = Tools({"get_weather": formed(STRICT, "x"), "get": {"type": "object"}}, frozenset({"get_weather"}))
OPENINGS = {
    "hermes": '<tool_call>\n{"name": "get_weather", ',
    "qwen": '<tool_call>\n{"name": "get_weather", ',
    "qwen3_coder": "<tool_call>\n<function=get_weather>",
    "llama3_json": '{"name": "get_weather", "parameters": ',
    "json": '[{"type": "function", "name": "get_weather", "arguments": ',
    "mistral": "[TOOL_CALLS]get_weather[ARGS]",
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n",
    "deepseek_v31": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>",
    "deepseek_v32": '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">',
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>",
    "glm45": "<tool_call>get_weather",
    "glm47": "<tool_call>get_weather",
    "minimax_m2": '<minimax:tool_call>\n<invoke name="get_weather">',
}


@pytest.fixture(scope="module")
def backend() -> GrammarBackend:
    return byte_backend()


def calls_of(dialect: str, text: str) -> tuple[str, list[tuple[str, str]]]:
    parser, delta = tool_parser(dialect, ToolSet(SCHEMAS)), Delta()
    parser.push(text, delta)
    parser.finish(delta)
    return delta.content, [(call.name, call.arguments) for call in delta.calls]


def test_every_dialect_but_two_can_be_held_to_a_schema() -> None:
    assert set(TOOLS) - CONSTRAINABLE == {"pythonic", "gpt_oss"}
    assert set(OPENINGS) == CONSTRAINABLE
    assert auto_calls("pythonic", OFFERED) is None and auto_calls("gpt_oss", OFFERED) is None


@pytest.mark.parametrize("dialect", sorted(CONSTRAINABLE))
def test_a_strict_call_fits_its_schema(backend: GrammarBackend, dialect: str) -> None:
    grammar = auto_calls(dialect, OFFERED)
    assert grammar is not None
    ended = 0
    for seed in range(12):
        text = walk(backend, grammar, random.Random(seed), begin=OPENINGS[dialect], hurry=60)
        if text is None:
            continue
        ended += 1
        _, calls = calls_of(dialect, text)
        assert calls, text
        for name, arguments in calls:
            if name == "get_weather":
                jsonschema.validate(json.loads(arguments), STRICT)
    assert ended >= 6, ended


@pytest.mark.parametrize("dialect", sorted(CONSTRAINABLE))
def test_text_is_free_until_a_call(backend: GrammarBackend, dialect: str) -> None:
    grammar = auto_calls(dialect, OFFERED)
    assert grammar is not None
    for text in ("Hello ☀, {}\n\n<b>1 < 2</b>", "<think>\nhm {\n</think>\n\nNo."):
        row = backend.row(grammar)
        assert all(row.accept(byte) for byte in text.encode()) and row.accept(256), text
        assert calls_of(dialect, text) == (text, [])


@pytest.mark.parametrize("dialect", sorted(CONSTRAINABLE))
def test_a_constrained_answer_leaves_room_for_calls(backend: GrammarBackend, dialect: str) -> None:
    """What follows is either the JSON that was asked for or calls."""
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    grammar = auto_calls(dialect, OFFERED, Grammar("json_schema", json.dumps(schema)))
    assert grammar is not None
    seen = set()
    for seed in range(12):
        begin = OPENINGS[dialect] if seed % 2 else '{"ok":'
        text = walk(backend, grammar, random.Random(seed), begin=begin, hurry=60)
        if text is None:
            continue
        content, calls = calls_of(dialect, text)
        seen.add(bool(calls))
        for name, arguments in calls:
            if name == "get_weather":
                jsonschema.validate(json.loads(arguments), STRICT)
        if calls:
            assert not content.strip(), text
        else:
            jsonschema.validate(json.loads(content), schema)
    assert seen == {True, False}


CHAT = "/v1/chat/completions"
ASK = {"model": "test", "messages": [{"role": "user", "content": "Weather?"}], "max_tokens": 2000}


def tool(strict: bool | None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "get_weather", "parameters": STRICT, "strict": strict}}


@pytest.mark.parametrize("route", ["chat", "responses", "messages"])
def test_routes_constrain_strict_tools_only(tmp_path: Path, route: str) -> None:
    said = "<think>\nhm\n</think>\n\nNo need."

    def body(strict: bool) -> tuple[str, dict[str, Any]]:
        if route == "chat":
            return CHAT, {**ASK, "tools": [tool(strict)]}
        if route == "responses":
            return "/v1/responses", {"input": "x", "tools": [{"type": "function", **tool(strict)["function"]}]}
        named = {"name": "get_weather", "input_schema": STRICT, "strict": strict}
        return "/v1/messages", {**ASK, "tools": [named]}

    async def test() -> None:
        async with model_that_says(tmp_path, said, reasoning_parser="qwen3") as server:
            for strict in (False, True):
                path, fields = body(strict)
                status, answer = await server.post(path, fields)
                assert status == 200, answer
                submit = server.engine.seen[-1]
                assert isinstance(submit, Submit)
                assert (submit.grammar is not None) == strict
                assert "No need." in json.dumps(answer) and "<think>" not in json.dumps(answer)
            assert submit.grammar is not None and submit.grammar.kind == "structural_tag"
            assert "get_weather" in submit.grammar.text

    run_async(test)


def test_what_cannot_be_constrained(tmp_path: Path) -> None:
    async def test() -> None:
        async with model_that_says(tmp_path, "ok", tool_call_parser="pythonic") as server:
            assert (await server.post(CHAT, {**ASK, "tools": [tool(True)]}))[0] == 200
            assert server.engine.seen[-1].grammar is None
        async with model_that_says(tmp_path, "ok", tool_call_parser="mistral") as server:
            assert (await server.post(CHAT, {**ASK, "tools": [tool(True)]}))[0] == 200
            vocabulary = next(m for m in server.engine.seen if type(m).__name__ == "Vocabulary")
            assert vocabulary.pieces[258] == b"[TOOL_CALLS]" and vocabulary.pieces[256] == b""
            broken = tool(True)
            broken["function"] = {**broken["function"], "parameters": {"type": "strin"}}
            status, answer = await server.post(CHAT, {**ASK, "tools": [broken]})
            assert (status, answer["error"]["param"]) == (400, "tools[0].function.parameters"), answer

    run_async(test)
