"""SmolLM2 on the CPU under constraints: every schema case gives valid JSON, every other constraint its language."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import openai
import pytest
from support.server import ServerProcess, running_server
from support.suite_data import json_schema_suite

from tsd.api.schema_form import Unsupported, formed

pytestmark = pytest.mark.slow

OBJECT: dict[str, Any] = {"type": "object", "additionalProperties": False}
SHORT = {"type": "string", "maxLength": 12}
CODE = "^[A-Z]{3}-[0-9]{2}$"
SCHEMAS: dict[str, dict[str, Any]] = {
    "flat": {
        **OBJECT,
        "properties": {"name": SHORT, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
        "required": ["name", "age"],
    },
    "enums": {**OBJECT, "properties": {"colour": {"enum": ["red", "green", 3, None]}}, "required": ["colour"]},
    "const": {**OBJECT, "properties": {"kind": {"const": "fixed"}}, "required": ["kind"]},
    "nested": {
        **OBJECT,
        "properties": {"a": {**OBJECT, "properties": {"b": {"type": "boolean"}}, "required": ["b"]}},
        "required": ["a"],
    },
    "array": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "minItems": 2, "maxItems": 4},
    "tuple": {"type": "array", "prefixItems": [SHORT, {"type": "boolean"}], "items": False, "minItems": 2},
    "any_of": {"anyOf": [{"type": "null"}, {**OBJECT, "properties": {"x": SHORT}, "required": ["x"]}]},
    "reference": {
        **OBJECT,
        "properties": {"left": {"$ref": "#/$defs/leaf"}, "right": {"$ref": "#/$defs/leaf"}},
        "required": ["left", "right"],
        "$defs": {"leaf": {**OBJECT, "properties": {"v": {"enum": [0, 1]}}, "required": ["v"]}},
    },
    "pattern": {**OBJECT, "properties": {"code": {"type": "string", "pattern": CODE}}, "required": ["code"]},
    "date": {**OBJECT, "properties": {"day": {"type": "string", "format": "date"}}, "required": ["day"]},
    "unicode": {**OBJECT, "properties": {"größe": {"enum": ["klein ☀", '"quoted"']}}, "required": ["größe"]},
    "optional": {**OBJECT, "properties": {"a": {"enum": [1]}, "b": {"enum": [2]}, "c": {"enum": [3]}}},
}  # fmt: skip


@pytest.fixture(scope="module")
def server(default_model: str) -> Iterator[ServerProcess]:
    with running_server(default_model, "--gpus", "none", "--max-model-len", "2048") as running:
        running.wait_ready()
        yield running


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0) as made:
        yield made


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    messages = [{"role": "user", "content": "Give me an example object, as compact JSON."}]
    model = client.models.list().data[0].id
    return client.chat.completions.create(model=model, messages=messages, max_tokens=400, **fields)  # type: ignore[call-overload]


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_schema_gives_valid_json(client: openai.OpenAI, name: str, temperature: float) -> None:
    form = {"type": "json_schema", "json_schema": {"name": name, "schema": SCHEMAS[name]}}
    answer = ask(client, response_format=form, temperature=temperature, seed=1)
    assert answer.choices[0].finish_reason == "stop"
    jsonschema.validate(json.loads(answer.choices[0].message.content), SCHEMAS[name])


def suite_schemas() -> list[tuple[str, Any]]:
    """Of the JSON-Schema-Test-Suite those that are kept to and bound their values: one in four."""
    found = []
    for case in json_schema_suite("draft2020-12"):
        with contextlib.suppress(Unsupported):
            shape = json.dumps(formed(case.schema, "schema"))
            if "{}" not in shape and "true" not in shape:
                found.append((f"{case.keyword}: {case.description}", case.schema))
    return found[::4]


def test_schemas_of_the_json_schema_test_suite(client: openai.OpenAI) -> None:
    schemas = suite_schemas()

    def answer_to(numbered: tuple[int, tuple[str, Any]]) -> bool:
        """Whether it came to its end."""
        seed, (name, schema) = numbered
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        answer = ask(
            client, response_format=form, temperature=0.7, seed=seed, extra_body={"max_completion_tokens": 160}
        )
        choice = answer.choices[0]
        if choice.finish_reason == "length":
            return False
        kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        assert kind(schema).is_valid(json.loads(choice.message.content)), (name, schema, choice.message.content)
        return True

    with ThreadPoolExecutor(8) as pool:
        ended = list(pool.map(answer_to, enumerate(schemas)))
    print(len(schemas), "schemas,", sum(ended), "answers at their end, all valid")
    assert sum(ended) >= 0.8 * len(schemas)


def test_other_constraints(client: openai.OpenAI) -> None:
    answer = ask(client, extra_body={"guided_regex": "(red|blue){2,3}!"}, seed=2)
    assert re.fullmatch("(red|blue){2,3}!", answer.choices[0].message.content)
    answer = ask(client, extra_body={"guided_choice": ["ja bitte", "nein"]}, seed=2)
    assert answer.choices[0].message.content in ("ja bitte", "nein")
    answer = ask(client, extra_body={"guided_grammar": 'root ::= "<" [0-9] [0-9]? ">"'}, seed=2)
    assert re.fullmatch("<[0-9]{1,2}>", answer.choices[0].message.content)


def test_forced_and_cut_calls(client: openai.OpenAI) -> None:
    tools = [{"type": "function", "function": {"name": "look_up", "parameters": SCHEMAS["flat"]}}]
    answer = ask(client, tools=tools, tool_choice="required", parallel_tool_calls=False, temperature=0)
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "look_up" and answer.choices[0].finish_reason == "tool_calls"
    jsonschema.validate(json.loads(call.function.arguments), SCHEMAS["flat"])


def test_length_is_reported(client: openai.OpenAI) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "flat", "schema": SCHEMAS["flat"]}}
    answer = ask(client, response_format=form, extra_body={"max_completion_tokens": 4})
    assert answer.choices[0].finish_reason == "length"


def test_constrained_rows_do_not_disturb_free_ones(client: openai.OpenAI) -> None:
    free = {"temperature": 0, "stop": ["\n"]}
    alone = ask(client, **free).choices[0].message.content
    form = {"type": "json_schema", "json_schema": {"name": "flat", "schema": SCHEMAS["flat"]}}
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(ask, client, response_format=form, seed=seed) for seed in range(3)]
        beside = pool.submit(ask, client, **free)
        for job in jobs:
            jsonschema.validate(json.loads(job.result().choices[0].message.content), SCHEMAS["flat"])
        assert beside.result().choices[0].message.content == alone
