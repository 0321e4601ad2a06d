"""Every schema of the JSON-Schema-Test-Suite is either refused, naming the parameter, or kept to: nothing that the
suite calls invalid is allowed, and what is drawn at random from the grammar is valid."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import jsonschema
import pytest
from support.grammar_walk import byte_backend, walk
from support.suite_data import SchemaCase, json_schema_suite

from tsd.api.limits import Limits
from tsd.api.schema_form import Unsupported, formed
from tsd.api.structured import schema_grammar
from tsd.engine.grammar import GrammarBackend, GrammarError
from tsd.engine.protocol import Grammar

DRAFTS = {"draft2020-12": jsonschema.Draft202012Validator, "draft7": jsonschema.Draft7Validator}
# Files whose every schema is about something that no grammar here can keep to.
REFUSED_WHOLE = {
    *("anchor", "contains", "definitions", "defs", "dependencies", "dependentRequired", "dependentSchemas"),
    *("dynamicRef", "not", "refRemote"),
}


@pytest.fixture(scope="module")
def backend() -> GrammarBackend:
    return byte_backend()


def allows(backend: GrammarBackend, grammar: Grammar, value: Any) -> bool:
    row = backend.row(grammar)
    return all(row.accept(byte) for byte in json.dumps(value, ensure_ascii=False).encode()) and row.accept(256)


def check(backend: GrammarBackend, case: SchemaCase, validator: Any, walks: int) -> str:
    """kept or refused."""
    try:
        grammar = Grammar("json_schema", json.dumps(formed(case.schema, "schema"), ensure_ascii=False))
        backend.compile(grammar)
    except (Unsupported, GrammarError) as error:
        assert str(error)
        return "refused"
    told = (case.keyword, case.description, case.schema, grammar.text)
    for test in case.tests:
        if not test["valid"]:
            assert not allows(backend, grammar, test["data"]), (*told, test["data"])
    for seed in range(walks):
        text = walk(backend, grammar, random.Random(seed), hurry=25, most=250)
        if text is not None:
            assert validator.is_valid(json.loads(text)), (*told, text)
    return "kept"


@pytest.mark.parametrize("draft", DRAFTS)
def test_the_suite_is_kept_or_refused(backend: GrammarBackend, draft: str) -> None:
    seen: dict[str, Counter[str]] = {}
    for case in json_schema_suite(draft):
        kind = jsonschema.validators.validator_for(case.schema, default=DRAFTS[draft])
        verdict = check(backend, case, kind(case.schema), walks=3)
        seen.setdefault(case.keyword, Counter())[verdict] += 1
    total = sum(seen.values(), Counter())
    print(draft, dict(total))
    assert {keyword for keyword, found in seen.items() if not found["kept"]} <= REFUSED_WHOLE
    assert total["kept"] > total["refused"]


DRAFT7 = "http://json-schema.org/draft-07/schema#"
# What people ask for: (schema, values to be kept out). Each must be kept to.
KEPT: list[tuple[Any, list[Any]]] = [
    ({"type": "number", "minimum": 0, "maximum": 1}, [-0.1, 1.01, 2]),
    ({"type": "number", "exclusiveMinimum": 0.5, "exclusiveMaximum": 2.25}, [0.5, 2.25, 2.3, 0]),
    ({"type": "integer", "minimum": 1.5, "maximum": 9.5}, [1, 10]),
    ({"type": "string", "pattern": "^a|b$"}, ["xx", "ba"]),
    ({"type": "string", "pattern": "[0-9]{2}"}, ["1", "ab"]),
    ({"type": "string", "format": "date"}, ["2023-11-31", "x"]),
    ({"type": "string", "format": "ipv4"}, ["39.026.53.7", "256.1.1.1"]),
    ({"type": "string", "format": "email", "maxLength": 3}, ["a@b.c"]),
    ({"type": ["string", "null"], "enum": ["a", None, 3]}, [3, "b"]),
    ({"type": "object", "required": ["a"]}, [{}, {"b": 1}]),
    ({"properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}}, [{"a": "x"}]),
    ({"type": "object", "properties": {'q"\\\n': {"type": "integer"}}, "required": ['q"\\\n']}, [{}, {'q"\\\n': "x"}]),
    ({"type": "object", "patternProperties": {"^f": {"type": "integer"}}}, [{"f": "x"}]),
    ({"type": "object", "propertyNames": {"pattern": "^a+$"}, "additionalProperties": {"type": "null"}}, [{"a": 1}]),
    ({"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1}, [{}, {"a": "x"}]),
    ({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2}, [[], [1, 2, 3], ["a"]]),
    (
        {"allOf": [{"$ref": "#/$defs/a"}, {"required": ["x"]}], "$defs": {"a": {"properties": {"x": {"const": 1}}}}},
        [{}],
    ),
    ({"$ref": "#/$defs/a", "maxLength": 2, "$defs": {"a": {"type": "string"}}}, ["abc"]),
    ({"type": "string", "anyOf": [{"maxLength": 1}, {"minLength": 3}]}, ["ab", 1]),
    ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, [None, 1.5]),
    (
        {"oneOf": [{"properties": {"k": {"const": k}}, "required": ["k"], "type": "object"} for k in "ab"]},
        [{"k": "c"}, {}],
    ),
    ({"type": "object", "properties": {"n": {"$ref": "#"}, "v": {"type": "integer"}}, "required": ["v"]}, [{"n": {}}]),
    (
        {"$schema": DRAFT7, "items": [{"type": "integer"}], "additionalItems": False, "type": "array"},
        [[1, 2], ["a"]],
    ),
    ({"enum": ["größe", "☀e", "éa\\x41", "🎉0"]}, ["gröe", "a"]),
    ({"type": "string", "pattern": "^ße[à-ü]a☀e$"}, ["ßea", "x"]),
    ({"type": "object", "properties": {"größe": {"const": "ße"}}, "required": ["größe"]}, [{}, {"größe": "e"}]),
    (True, []),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(KEPT)))
def test_what_people_ask_for_is_kept(backend: GrammarBackend, number: int) -> None:
    schema, bad = KEPT[number]
    case = SchemaCase("", "", schema, [{"data": value, "valid": False} for value in bad])
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    validator = kind(schema, format_checker=jsonschema.FormatChecker(("date", "ipv4")))
    for value in bad:
        assert not validator.is_valid(value), value
    assert check(backend, case, validator, walks=12) == "kept"


def test_decimal_places_are_kept(backend: GrammarBackend) -> None:
    shape = formed({"type": "number", "minimum": -1.5, "multipleOf": 0.01}, "schema")
    grammar = Grammar("json_schema", json.dumps(shape))
    for value, good in ((0.25, True), (-1.5, True), (7, True), (-1.51, False), (0.001, False)):
        assert allows(backend, grammar, value) == good, value


OBJECT = {"type": "object"}
REFUSED: list[tuple[Any, str]] = [
    ({"not": {"type": "string"}}, "'not'"),
    ({"if": {"type": "string"}, "then": {"maxLength": 2}}, "'if'"),
    ({"type": "array", "uniqueItems": True}, "'uniqueItems'"),
    ({"type": "array", "contains": {"const": 1}}, "'contains'"),
    ({"type": "integer", "multipleOf": 3}, "'multipleOf'"),
    ({"multipleOf": 1.5}, "'multipleOf'"),
    ({**OBJECT, "dependentRequired": {"a": ["b"]}}, "'dependentRequired'"),
    ({**OBJECT, "dependentSchemas": {"a": {"required": ["b"]}}}, "'dependentSchemas'"),
    ({**OBJECT, "dependencies": {"a": ["b"]}}, "'dependencies'"),
    ({**OBJECT, "unevaluatedProperties": False, "anyOf": [{"properties": {"a": {}}}]}, "'unevaluatedProperties'"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "'oneOf'"),
    ({"type": "string", "pattern": "^a", "maxLength": 3}, "'pattern'"),
    ({"type": "string", "enum": ["a"], "maxLength": 3}, "'maxLength'"),
    ({"$ref": "https://example.com/schema.json"}, "$ref"),
    ({"$ref": "#/$defs/nothing"}, "points at nothing"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "itself"),
    ({**OBJECT, "properties": {"a": {"type": "strin"}}}, "strin"),
    ({"type": "string", "minLength": 3, "maxLength": 2}, "no value"),
    ({"type": "string", "minLength": -1}, "'minLength'"),
    ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "no value"),
    ({**OBJECT, "properties": {"a": False}, "required": ["a"]}, "no value"),
    ({"enum": []}, "'enum'"),
    ({"type": "number", "minimum": "0"}, "'minimum'"),
    ({"anyOf": 5}, "'anyOf'"),
    ({**OBJECT, "properties": {"aaaa": {}}, "patternProperties": {"(a+)+b": {"const": 1}}}, "pattern"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_cannot_be_kept_is_refused_by_name(number: int) -> None:
    schema, named = REFUSED[number]
    with pytest.raises(Unsupported) as caught:
        schema_grammar("response_format.json_schema.schema", schema, Limits())
    assert caught.value.param == "response_format.json_schema.schema"
    assert named in caught.value.message and caught.value.code == "unsupported_schema"


def test_a_schema_that_unfolds_without_end_is_refused() -> None:
    schema: dict[str, Any] = {"$defs": {"d0": {"type": "string"}}, "$ref": "#/$defs/d40"}
    for level in range(40):
        pair = [{"$ref": f"#/$defs/d{level}"}, {"$ref": f"#/$defs/d{level}"}]
        schema["$defs"][f"d{level + 1}"] = {"anyOf": pair, "title": "x", "minLength": level}
    with pytest.raises(Unsupported):
        formed(schema, "schema")
