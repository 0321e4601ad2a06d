"""A JSON schema → one that a grammar can be held to, or a refusal that names what cannot be.

What comes out allows only what the schema allows. It may allow less: objects that name properties take no others, and
a schema that speaks only of some types allows only those. References are followed, `allOf` is merged, alternatives
take on what stands beside them. Annotations, `format` beside a pattern or a length among them, are dropped.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import msgspec

from tsd.api.errors import InvalidRequest
from tsd.api.schema_merge import Impossible, Schema, are_disjoint, merge, same
from tsd.api.schema_types import LEAVES, plain

MAX_NODES = 2048
MAX_ALTERNATIVES = 64
"""Of a `oneOf`: each is compared with each."""
REMEMBERED = 256
MAX_UNFOLDING = 48
"""References and merges inside each other, on the way to one node."""
_TYPES: dict[str, frozenset[str]] = {
    "object": frozenset(
        ("properties", "required", "additionalProperties", "minProperties", "maxProperties", "patternProperties")
    )
    | {"propertyNames"},
    "array": frozenset(("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains")),
    "string": frozenset(("minLength", "maxLength", "pattern", "format")),
    "number": frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")),
    "integer": frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")),
    "boolean": frozenset(),
    "null": frozenset(),
}
_APPLIED = frozenset(("allOf", "anyOf", "oneOf", "$ref", "enum", "const", "type"))
_REFUSED = frozenset(
    ("not", "if", "dependentRequired", "dependentSchemas", "dependencies", "$dynamicRef", "$recursiveRef")
) | {"unevaluatedProperties", "unevaluatedItems", "$id"}
KEYWORDS = frozenset().union(*_TYPES.values(), _APPLIED, _REFUSED)
"""Everything else says nothing of what a value may be."""


class Unsupported(InvalidRequest):
    code = "unsupported_schema"


def formed(schema: Any, name: str) -> Any:
    """`schema` as it can be held to. Raises Unsupported, naming the parameter `name` and the keyword."""
    if not isinstance(schema, dict):
        return schema
    return _formed(msgspec.json.encode(schema), name)


@functools.lru_cache(maxsize=REMEMBERED)
def _formed(text: bytes, name: str) -> Any:
    """Agents send the same schemas with each request. The result is shared: nobody changes it."""
    schema = msgspec.json.decode(text)
    form = _Form(schema, name)
    try:
        found = form.node(schema, 0)
    except Impossible as error:
        raise Unsupported(f"{name} allows no value: {error}", param=name) from error
    except RecursionError as error:
        raise Unsupported(f"{name} is nested too deep", param=name) from error
    return {**found, "$defs": form.definitions} if form.definitions and isinstance(found, dict) else found


class _Form:
    def __init__(self, root: Schema, name: str) -> None:
        self._root = root
        self._param = name
        self._nodes = 0
        self._names: dict[str, str] = {}
        self._impossible: set[str] = set()
        self.definitions: dict[str, Any] = {}

    def refuse(self, what: str) -> Unsupported:
        return Unsupported(f"{self._param}: {what}", param=self._param)

    def node(self, schema: Any, depth: int) -> Any:
        """Raises Impossible for one that no value fits."""
        if schema is False:
            raise Impossible("a schema is false")
        if not isinstance(schema, dict):
            if schema is True:
                return {}
            raise self.refuse(f"{str(schema)[:40]!r} is no schema")
        self._nodes += 1
        if self._nodes > MAX_NODES or depth > MAX_UNFOLDING:
            raise self.refuse("the schema unfolds into too much")
        schema = self.known(schema)
        if "$ref" in schema:
            others = {key: value for key, value in schema.items() if key != "$ref"}
            if not others:
                return {"$ref": f"#/$defs/{self._definition(schema['$ref'])}"}
            return self.node(self._merged([self._target(schema["$ref"]), others]), depth + 1)
        if "allOf" in schema:
            others = {key: value for key, value in schema.items() if key != "allOf"}
            members = [self._inlined(member) for member in self._list(schema, "allOf")]
            return self.node(self._merged([*members, others]), depth + 1)
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return self._alternatives(schema, key, depth)
        return self._leaf(schema, depth)

    def known(self, schema: Schema) -> Schema:
        found = {key: value for key, value in schema.items() if key in KEYWORDS}
        for key in _REFUSED & found.keys():
            value = found.pop(key)
            harmless = (
                (key == "$id" and schema is self._root)
                or (key == "if" and "then" not in schema and "else" not in schema)
                or (key.startswith("unevaluated") and value is True)
                or (key.startswith("depend") and not value)
            )
            if key == "unevaluatedProperties" and not harmless and not _APPLIED & found.keys() - {"type"}:
                found.setdefault("additionalProperties", value)
            elif key == "unevaluatedItems" and "items" in found:
                continue
            elif not harmless:
                raise self.refuse(f"{key!r} is not supported")
        if isinstance(found.get("items"), list):  # as it was written before 2020-12
            found["prefixItems"] = found.pop("items")
            if "additionalItems" in schema:
                found["items"] = schema["additionalItems"]
        return found

    def _list(self, schema: Schema, key: str) -> list[Any]:
        value = schema[key]
        if not isinstance(value, list) or not value:
            raise self.refuse(f"{key!r} must be a list of schemas")
        return value

    def _merged(self, members: list[Any]) -> Any:
        found: Any = {}
        for member in members:
            member = self._inlined(member)
            found = merge(found, self.known(member) if isinstance(member, dict) else member, self.refuse)
        return found

    def _inlined(self, schema: Any) -> Any:
        """A member of a merge must say itself what it says."""
        for _ in range(MAX_UNFOLDING):
            if not isinstance(schema, dict) or "$ref" not in schema:
                return schema
            schema = {**schema}
            target = self._target(schema.pop("$ref"))
            others = self.known(schema)
            schema = {"allOf": [target, others]} if others else target
        raise self.refuse("a reference leads to itself")

    def _target(self, reference: Any) -> Any:
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise self.refuse(f"$ref {str(reference)[:80]!r} does not point into the schema itself")
        found: Any = self._root
        for step in reference[1:].split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and step in found:
                found = found[step]
            elif isinstance(found, list) and step.isascii() and step.isdecimal() and int(step[:6]) < len(found):
                found = found[int(step)]
            else:
                raise self.refuse(f"$ref {reference[:80]!r} points at nothing")
        return found

    def _definition(self, reference: Any) -> str:
        target = self._target(reference)
        name = self._names.get(reference)
        if name is None:
            name = self._names[reference] = f"d{len(self._names)}"
            self.definitions[name] = {}
            try:
                self.definitions[name] = self.node(target, 0)
            except Impossible:
                self._impossible.add(name)
                raise
            if self.definitions[name] == {"$ref": f"#/$defs/{name}"}:
                raise self.refuse(f"$ref {reference[:80]!r} leads to itself")
        if name in self._impossible:
            raise Impossible("a reference leads to a schema that allows no value")
        return name

    def _alternatives(self, schema: Schema, key: str, depth: int) -> Any:
        others = {name: value for name, value in schema.items() if name != key}
        branches = self._list(schema, key)
        if key == "oneOf":
            if len(branches) > MAX_ALTERNATIVES:
                raise self.refuse(f"'oneOf' of over {MAX_ALTERNATIVES} alternatives is not supported")
            plain = [self._merged([branch]) for branch in branches]
            if not all(are_disjoint(a, b, self._target) for i, a in enumerate(plain) for b in plain[:i]):
                raise self.refuse("'oneOf' whose alternatives may overlap is not supported; 'anyOf' is")
        found, why = [], "no alternative is left"
        for branch in branches:
            try:
                found.append(self.node(self._merged([branch, others]) if others else branch, depth + 1))
            except Impossible as error:
                why = str(error)
        if not found:
            raise Impossible(why)
        return found[0] if len(found) == 1 else {"anyOf": found}

    def _leaf(self, schema: Schema, depth: int) -> Any:
        types = self._types(schema)
        values = schema.get("enum") if "const" not in schema else [schema["const"]]
        if values is not None:
            return self._values(schema, values, types)
        if types is None:
            types = [kind for kind, words in _TYPES.items() if words & schema.keys() and kind != "integer"]
            if not types:
                return {}
        found, why = [], "no type is left"
        for kind in types:
            own = {key: value for key, value in schema.items() if key in _TYPES[kind]}
            try:
                found.append(LEAVES.get(kind, plain)(self, kind, own, depth))
            except Impossible as error:
                why = str(error)
        if not found:
            raise Impossible(why)
        return found[0] if len(found) == 1 else {"anyOf": found}

    def _types(self, schema: Schema) -> list[str] | None:
        kinds = schema.get("type")
        if kinds is None:
            return None
        kinds = kinds if isinstance(kinds, list) else [kinds]
        for kind in kinds:
            if not isinstance(kind, str) or kind not in _TYPES:
                raise self.refuse(f"type {str(kind)[:40]!r} is unknown")
        return [kind for kind in dict.fromkeys(kinds) if not (kind == "integer" and "number" in kinds)]

    def _values(self, schema: Schema, values: Any, types: list[str] | None) -> Any:
        if not isinstance(values, list) or not values:
            raise self.refuse("'enum' must be a list of values")
        if "const" in schema and "enum" in schema and not any(same(schema["const"], v) for v in schema["enum"] or ()):
            raise Impossible("'const' is not in 'enum'")
        beside = sorted(key for key in schema if key not in ("enum", "const", "type", "format"))
        if beside:
            raise self.refuse(f"{beside[0]!r} beside 'enum' or 'const' is not supported")
        kept = [value for value in values if types is None or kind_of(value) in types or _is_whole(value, types)]
        if not kept:
            raise Impossible("no value of 'enum' has the type")
        return {"enum": kept}

    def count(self, own: Schema, key: str) -> int | None:
        value = own.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0 or value != int(value):
            raise self.refuse(f"{key!r} must be a whole number")
        return int(value)


def kind_of(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    for kind, python in (("string", str), ("array", list), ("object", dict), ("integer", int)):
        if isinstance(value, python):
            return kind
    return "number"


def _is_whole(value: Any, types: list[str]) -> bool:
    kind = kind_of(value)
    return (kind == "integer" and "number" in types) or (
        kind == "number" and "integer" in types and math.isfinite(value) and value == int(value)
    )
