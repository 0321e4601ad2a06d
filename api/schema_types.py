"""One type's part of a JSON schema, as a grammar can be held to it: objects, arrays, strings, numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

from tsd.api.schema_merge import Impossible, Schema
from tsd.api.schema_pattern import alternatives, checked, matches

FORMATS = ("time", "duration", "email", "hostname", "ipv6", "uuid", "uri")
"""Those of strings that the grammar knows; with FORMAT_PATTERNS those that are kept to. The others say nothing here."""
DECIMAL_STEPS = tuple(float(f"1e-{places}") for places in range(16))
_DATE = (
    "[12][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    "|02-(0[1-9]|1[0-9]|2[0-8]))"
)
_CLOCK = "([01][0-9]|2[0-3]):[0-5][0-9]"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
FORMAT_PATTERNS = {
    "date": f"^{_DATE}$",
    "date-time": f"^{_DATE}T{_CLOCK}:[0-5][0-9](\\.[0-9]{{1,6}})?(Z|[+-]{_CLOCK})$",
    "ipv4": f"^({_BYTE}\\.){{3}}{_BYTE}$",
}


class Form(Protocol):
    """What the parts need of the whole."""

    def node(self, schema: Any, depth: int) -> Any:
        """Raises Impossible for a schema that no value fits."""

    def known(self, schema: Schema) -> Schema:
        """The keywords that say what a value may be."""

    def count(self, own: Schema, key: str) -> int | None:
        """A whole number."""

    def refuse(self, what: str) -> Exception: ...


def plain(form: Form, kind: str, own: Schema, depth: int) -> Any:
    return {"type": kind}


def _object(form: Form, kind: str, own: Schema, depth: int) -> Any:
    properties, required = own.get("properties", {}), own.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        raise form.refuse("'properties' must be an object and 'required' a list")
    patterns = own.get("patternProperties") or {}
    rest = own.get("additionalProperties", True)
    names = own.get("propertyNames", True)
    wanted: dict[str, Any] = {name: [schema] for name, schema in properties.items()}
    for name in required:
        wanted.setdefault(str(name), [])
    found: dict[str, Any] = {}
    for name, schemas in wanted.items():
        ruled = [schema for pattern, schema in patterns.items() if matches(pattern, name, form.refuse)]
        schemas = [*schemas, *ruled] or [rest]
        try:
            if not _name_allowed(form, name, names):
                raise Impossible(f"'propertyNames' forbids {name[:40]!r}")
            found[name] = form.node(schemas[0] if len(schemas) == 1 else {"allOf": schemas}, depth + 1)
        except Impossible:
            if name in required:
                raise
    least, most = form.count(own, "minProperties") or 0, form.count(own, "maxProperties")
    if most is not None and most < len(required):
        raise Impossible("'required' asks for more than 'maxProperties'")
    shape: dict[str, Any] = {"type": "object"}
    if found or (rest is False and not patterns):
        if least > len(found):
            raise form.refuse("'minProperties' over the number of properties is not supported")
        shape |= {"properties": found, "required": [name for name in found if name in required]}
        shape["additionalProperties"] = False
        if least <= len(shape["required"]):
            least = 0
        if most is not None and most >= len(found):
            most = None
    elif patterns or names is not True:
        shape |= _map_by_name(form, patterns, rest, names, depth)
    else:
        try:
            shape["additionalProperties"] = form.node(rest, depth + 1) or True
        except Impossible:
            shape["additionalProperties"] = False
    return shape | ({"minProperties": least} if least else {}) | ({} if most is None else {"maxProperties": most})


def _name_allowed(form: Form, name: str, names: Any) -> bool:
    if names is True or names == {}:
        return True
    if not isinstance(names, dict):
        return False
    pattern = _name_pattern(form, names)
    return name in names["enum"] if pattern is None else matches(pattern, name, form.refuse)


def _name_pattern(form: Form, names: Schema) -> str | None:
    """As one pattern; None where they are listed."""
    words = form.known(names).keys() - {"type"}
    if words == {"enum"} and isinstance(names["enum"], list):
        return None
    if words == {"pattern"}:
        return str(names["pattern"])
    if words and words <= {"minLength", "maxLength"}:
        most = form.count(names, "maxLength")
        return f"^[^\\n]{{{form.count(names, 'minLength') or 0},{'' if most is None else most}}}$"
    raise form.refuse("'propertyNames' is supported with one of 'pattern', 'enum' and lengths")


def _map_by_name(form: Form, patterns: dict[str, Any], rest: Any, names: Any, depth: int) -> Schema:
    """Of an object without named properties."""
    if len(patterns) + (names is not True) > 1:
        raise form.refuse("more than one of 'patternProperties' and 'propertyNames' is not supported")
    if names is False:
        return {"additionalProperties": False}
    if names is True:
        ((pattern, schema),) = patterns.items()
    else:
        found = _name_pattern(form, names)
        if found is None:
            value = form.node(rest, depth + 1)
            return {"properties": {str(n): value for n in names["enum"]}, "additionalProperties": False}
        pattern, schema = found, rest
    if len(alternatives(checked(pattern, form.refuse))) > 1:
        raise form.refuse(f"the pattern {pattern[:80]!r} of a name is not supported")
    try:
        return {"patternProperties": {pattern: form.node(schema, depth + 1)}, "additionalProperties": False}
    except Impossible:
        return {"additionalProperties": False}


def _array(form: Form, kind: str, own: Schema, depth: int) -> Any:
    first, rest = own.get("prefixItems", []), own.get("items", True)
    least, most = form.count(own, "minItems") or 0, form.count(own, "maxItems")
    if own.get("uniqueItems") and (most is None or most > 1):
        raise form.refuse("'uniqueItems' is not supported")
    if "contains" in own:
        raise form.refuse("'contains' is not supported")
    if not isinstance(first, list):
        raise form.refuse("'prefixItems' must be a list of schemas")
    if most is not None and most < least:
        raise Impossible("'minItems' is over 'maxItems'")
    items: list[Any] = []
    for schema in first:
        try:
            items.append(form.node(schema, depth + 1))
        except Impossible:
            rest = False  # the array must end before this item
            break
    shape: dict[str, Any] = {"type": "array"}
    if items:
        shape["prefixItems"] = items
    try:
        shape["items"] = form.node(rest, depth + 1) or True
    except Impossible:
        shape["items"] = False
        if least > len(items):
            raise
    if most is not None and items and most <= len(items):
        shape["prefixItems"], shape["items"] = items[:most], False
        most = None
        if not shape["prefixItems"]:
            del shape["prefixItems"]
            most = 0
    return shape | ({"minItems": least} if least else {}) | ({} if most is None else {"maxItems": most})


def _string(form: Form, kind: str, own: Schema, depth: int) -> Any:
    least, most = form.count(own, "minLength") or 0, form.count(own, "maxLength")
    pattern = own.get("pattern")
    if most is not None and most < least:
        raise Impossible("'minLength' is over 'maxLength'")
    if pattern is not None:
        if least or most is not None:
            raise form.refuse("'pattern' beside a length is not supported")
        parts = alternatives(checked(pattern, form.refuse))
        found = [{"type": "string", "pattern": part} for part in parts]
        return found[0] if len(found) == 1 else {"anyOf": found}
    if least or most is not None:
        lengths = ({"minLength": least} if least else {}) | ({} if most is None else {"maxLength": most})
        return {"type": "string", **lengths}
    form_of = own.get("format")
    if isinstance(form_of, str) and form_of in FORMAT_PATTERNS:
        return {"type": "string", "pattern": FORMAT_PATTERNS[form_of]}
    return {"type": "string", **({"format": form_of} if form_of in FORMATS else {})}


def _number(form: Form, kind: str, own: Schema, depth: int) -> Any:
    for key, value in own.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise form.refuse(f"{key!r} must be a number")
    if kind == "number":
        if "multipleOf" in own and own["multipleOf"] not in DECIMAL_STEPS:
            raise form.refuse("'multipleOf' is supported for 1, 0.1, 0.01 and so on only")
        return {"type": "number", **own}
    if own.get("multipleOf", 1) != 1:
        raise form.refuse("'multipleOf' over 1 is not supported")
    lows = [math.ceil(own["minimum"])] if "minimum" in own else []
    lows += [math.floor(own["exclusiveMinimum"]) + 1] if "exclusiveMinimum" in own else []
    highs = [math.floor(own["maximum"])] if "maximum" in own else []
    highs += [math.ceil(own["exclusiveMaximum"]) - 1] if "exclusiveMaximum" in own else []
    if lows and highs and max(lows) > min(highs):
        raise Impossible("no integer lies between the bounds")
    bounds = ({"minimum": max(lows)} if lows else {}) | ({"maximum": min(highs)} if highs else {})
    return {"type": "integer", **bounds}


LEAVES: dict[str, Callable[[Form, str, Schema, int], Any]] = {
    "object": _object,
    "array": _array,
    "string": _string,
    "number": _number,
    "integer": _number,
}
