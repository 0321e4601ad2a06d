"""Two JSON schemas at once → one, and whether two exclude each other. Knows no grammar."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]
Refuse = Callable[[str], Exception]
MAX_BRANCHES = 64


class Impossible(Exception):
    """No value fits."""


def same(one: Any, other: Any) -> bool:
    return _key(one) == _key(other)


def _key(value: Any) -> str:
    """Equal for equal JSON: 1 and 1.0 are, 1 and true are not."""
    return json.dumps(_plain(value), sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value == value and abs(value) < 1e15 and value == int(value):
        return int(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def merge(one: Any, other: Any, refuse: Refuse) -> Any:
    """What fits both. Neither holds a reference at its top; `refuse` makes the error for what cannot be merged."""
    if one is False or other is False:
        raise Impossible("a schema is false")
    if one is True or one == {}:
        return other
    if other is True or other == {}:
        return one
    found = {key: value for key, value in one.items() if key not in other}
    found |= {key: value for key, value in other.items() if key not in one}
    for key in one:
        if key in other:
            found[key] = _both(key, one[key], other[key], refuse)
    _properties(one, other, found)
    apart = not any("prefixItems" in side and "items" in side for side in (one, other))
    if "prefixItems" in found and "items" in found and (apart or ("items" in one and "items" in other)):
        raise refuse("'prefixItems' of one schema beside 'items' of another is not supported")
    return found


def _both(key: str, one: Any, other: Any, refuse: Refuse) -> Any:
    if one == other and same(one, other):
        return one
    if key == "type":
        return _types(one, other)
    if key in ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"):
        return max(one, other)
    if key in ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"):
        return min(one, other)
    if key == "required":
        return list(dict.fromkeys([*one, *other]))
    if key in ("properties", "patternProperties"):
        shared = {name: {"allOf": [one[name], other[name]]} for name in one if name in other}
        return {**one, **other, **shared}
    if key in ("additionalProperties", "items", "propertyNames"):
        return {"allOf": [one, other]}
    if key == "enum":
        known = {_key(value) for value in other}
        kept = [value for value in one if _key(value) in known]
        if not kept:
            raise Impossible("two lists of values have none in common")
        return kept
    if key == "const":
        raise Impossible("two constants differ")
    if key == "allOf":
        return [*one, *other]
    if key in ("anyOf", "oneOf"):
        if len(one) * len(other) > MAX_BRANCHES:
            raise refuse(f"{key!r} in too many schemas at once")
        return [{"allOf": [a, b]} for a in one for b in other]
    if key == "uniqueItems":
        return one or other
    if key == "format":
        return one
    raise refuse(f"{key!r} in two schemas that both apply is not supported")


def _types(one: Any, other: Any) -> list[str]:
    first, second = (value if isinstance(value, list) else [value] for value in (one, other))
    kept = [kind for kind in first if kind in second or (kind == "integer" and "number" in second)]
    kept += [kind for kind in second if kind == "integer" and "number" in first and kind not in kept]
    if not kept:
        raise Impossible("two schemas ask for different types")
    return kept


def _properties(one: Schema, other: Schema, found: Schema) -> None:
    """What one says of further properties holds for those that only the other names."""
    for here, there in ((one, other), (other, one)):
        rest = here.get("additionalProperties", True)
        if rest is True or rest == {}:
            continue
        named = here.get("properties", {})
        for name in there.get("properties", {}):
            if name not in named:
                found["properties"] = {**found["properties"], name: {"allOf": [found["properties"][name], rest]}}


def are_disjoint(one: Any, other: Any, target: Callable[[Any], Any]) -> bool:
    """Whether it is plain to see that no value fits both."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        return one is False or other is False
    kinds = [_kinds(schema) for schema in (one, other)]
    if kinds[0] is not None and kinds[1] is not None and not kinds[0] & kinds[1]:
        return True
    values = [_values(schema) for schema in (one, other)]
    if values[0] is not None and values[1] is not None:
        return not values[0] & values[1]
    names = set(one.get("required", ())) & set(other.get("required", ()))
    for name in names:
        pair = [schema.get("properties", {}).get(name) for schema in (one, other)]
        pair = [_followed(schema, target) for schema in pair]
        told = all(isinstance(schema, dict) for schema in pair) and kinds[0] == kinds[1] == {"object"}
        if told and are_disjoint(pair[0], pair[1], target):
            return True
    return False


def _followed(schema: Any, target: Callable[[Any], Any]) -> Any:
    for _ in range(8):
        if not isinstance(schema, dict) or "$ref" not in schema:
            break
        schema = target(schema["$ref"])
    return schema


def _kinds(schema: Schema) -> set[str] | None:
    """Integers are numbers here."""
    kinds = schema.get("type")
    if kinds is None:
        return None
    return {"number" if kind == "integer" else kind for kind in (kinds if isinstance(kinds, list) else [kinds])}


def _values(schema: Schema) -> set[str] | None:
    if "const" in schema:
        return {_key(schema["const"])}
    values = schema.get("enum")
    return {_key(value) for value in values} if isinstance(values, list) else None
