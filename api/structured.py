"""What a request says of the form of its output → a `Grammar`. Sizes and depths are checked here, the rest later."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from tsd.api.errors import InvalidRequest
from tsd.api.limits import Limits, check_count, check_length, check_schema
from tsd.api.params import unsupported
from tsd.api.schema_form import formed
from tsd.api.wire.chat import ResponseFormat
from tsd.api.wire.sampling import SamplingFields
from tsd.engine.protocol import Grammar

MAX_CHOICES = 1024


def output_grammar(fields: SamplingFields, form: ResponseFormat | None, limits: Limits) -> Grammar | None:
    """From `response_format`, a `guided_*` field or `structured_outputs`; at most one of them."""
    found = [
        *_of_format(form, limits),
        *_guided(
            "guided_",
            {
                "json": fields.guided_json,
                "regex": fields.guided_regex,
                "grammar": fields.guided_grammar,
                "choice": fields.guided_choice,
            },
            limits,
        ),
        *_guided("structured_outputs.", fields.structured_outputs or {}, limits),
    ]
    if len(found) > 1:
        raise InvalidRequest("only one constraint on the output may be given", param="response_format")
    return found[0] if found else None


def _of_format(form: ResponseFormat | None, limits: Limits) -> list[Grammar]:
    if form is None or form.type == "text":
        return []
    if form.type == "json_object":
        return [Grammar("json_object", "")]
    if form.type == "json_schema":
        if form.json_schema is None or form.json_schema.schema is None:
            raise InvalidRequest(
                "response_format.json_schema.schema is missing", param="response_format.json_schema.schema"
            )
        return [schema_grammar("response_format.json_schema.schema", form.json_schema.schema, limits)]
    if form.type == "structural_tag":
        return [_structural_tag(form, limits)]
    raise unsupported("response_format.type", f"{form.type[:40]!r} is not supported")


def _structural_tag(form: ResponseFormat, limits: Limits) -> Grammar:
    if form.format is not None:
        value: dict[str, Any] = {"type": "structural_tag", "format": form.format}
    else:
        tags = []
        for item in form.structures or []:
            if not isinstance(item, dict) or not {"begin", "end"} <= item.keys():
                raise InvalidRequest("a structure needs begin, schema and end", param="response_format.structures")
            schema = formed(item.get("schema") or {}, "response_format.structures")
            content = {"type": "json_schema", "json_schema": schema}
            tags.append({"type": "tag", "begin": item["begin"], "content": content, "end": item["end"]})
        if not tags or not form.triggers:
            raise InvalidRequest("structural_tag needs structures and triggers, or format", param="response_format")
        value = {
            "type": "structural_tag",
            "format": {"type": "triggered_tags", "triggers": form.triggers, "tags": tags},
        }
    check_schema("response_format", value, limits)
    return Grammar("structural_tag", json.dumps(value, ensure_ascii=False))


def _guided(prefix: str, fields: dict[str, Any], limits: Limits) -> list[Grammar]:
    found = []
    for key, value in fields.items():
        if value is None:
            continue
        name = prefix + key
        if key == "json":
            found.append(schema_grammar(name, value, limits))
        elif key == "json_object":
            found += [Grammar("json_object", "")] if value is True else []
        elif key in ("regex", "grammar"):
            found.append(text_grammar(name, "regex" if key == "regex" else "ebnf", value, limits))
        elif key == "choice":
            found.append(choice_grammar(name, value, limits))
        elif key == "structural_tag":
            found.append(Grammar("structural_tag", _checked_text(name, value, limits)))
        elif key not in ("disable_fallback", "disable_any_whitespace", "whitespace_pattern", "backend"):
            raise unsupported(name)
    return found


def schema_grammar(name: str, schema: Any, limits: Limits) -> Grammar:
    """A JSON schema, as an object or its text."""
    check_schema(name, schema, limits)
    if isinstance(schema, str):
        try:
            schema = msgspec.json.decode(schema)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidRequest(f"{name} is not JSON", param=name) from error
    if not isinstance(schema, (dict, bool)):
        raise InvalidRequest(f"{name} must be a JSON schema object", param=name)
    return Grammar("json_schema", json.dumps(formed(schema, name), ensure_ascii=False))


def text_grammar(name: str, kind: str, text: Any, limits: Limits) -> Grammar:
    """A regular expression or an EBNF grammar."""
    return Grammar(kind, _checked_text(name, text, limits))


def choice_grammar(name: str, choices: Any, limits: Limits) -> Grammar:
    if not isinstance(choices, list) or not choices or not all(isinstance(item, str) and item for item in choices):
        raise InvalidRequest(f"{name} must be a list of texts", param=name)
    check_count(name, len(choices), MAX_CHOICES)
    check_length(name, "".join(choices), limits.schema_bytes)
    return Grammar("choice", json.dumps(choices, ensure_ascii=False))


def _checked_text(name: str, text: Any, limits: Limits) -> str:
    if not isinstance(text, str) or not text:
        raise InvalidRequest(f"{name} must be a text", param=name)
    check_length(name, text, limits.schema_bytes)
    if nesting(text) > limits.grammar_depth:
        raise InvalidRequest(f"{name} is nested deeper than {limits.grammar_depth}", param=name, code="too_deep")
    return text


def nesting(text: str) -> int:
    """Deepest run of open brackets, quotes and escapes not considered: an upper bound."""
    depth = deepest = 0
    for bracket in re.findall(r"[()\[\]{}]", text):
        depth = depth + 1 if bracket in "([{" else max(0, depth - 1)
        deepest = max(deepest, depth)
    return deepest
