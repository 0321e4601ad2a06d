"""Arguments that a dialect writes as tagged plain text, held to a tool's schema: as parts of a structural tag.

Values are what `parsers/values.py` reads: text for a string, JSON for anything else. Members come in the order of the
schema; those that are not required may be left out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tsd.api.parsers.output import ToolSet

Format = dict[str, Any]


class MemberForm(NamedTuple):
    """`begin` holds KEY, and KIND where the dialect says whether the value is a string."""

    begin: str
    end: str


MEMBERS: dict[str, MemberForm] = {
    "qwen3_coder": MemberForm("<parameter=KEY>\n", "\n</parameter>"),
    "glm45": MemberForm("<arg_key>KEY</arg_key>\n<arg_value>", "</arg_value>"),
    "glm47": MemberForm("<arg_key>KEY</arg_key><arg_value>", "</arg_value>"),
    "minimax_m2": MemberForm('<parameter name="KEY">', "</parameter>"),
    "deepseek_v32": MemberForm('<｜DSML｜parameter name="KEY" string="KIND">', "</｜DSML｜parameter>"),
}
_LINES = "[\\n]{0,2}"
"""Between members."""


def members(dialect: str, schema: dict[str, Any]) -> Format:
    """The members of one call, for a schema of type object."""
    form = MEMBERS[dialect]
    required = schema.get("required") or []
    found: list[Format] = [_space()]
    for key in schema.get("properties") or {}:
        member = _sequence(_either(_values(form, key, schema)), _space())
        found.append(member if key in required else {"type": "optional", "content": member})
    return _sequence(*found)


def _values(form: MemberForm, key: str, schema: dict[str, Any]) -> list[Format]:
    tools = ToolSet({"": schema})
    leaves = _leaves(tools.parameter("", key), schema)
    strings = [leaf for leaf in leaves if leaf.get("type") == "string" or _is_texts(leaf)]
    if strings:
        # The parser takes everything but null for text where a string may be.
        found = [_member(form, key, "true", _string(leaf)) for leaf in strings]
        if any(leaf.get("type") == "null" for leaf in leaves):
            found.append(_member(form, key, "false", {"type": "const_string", "value": "null"}))
        return found
    definitions = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    return [
        _member(form, key, "false", {"type": "json_schema", "json_schema": {**leaf, **definitions}}) for leaf in leaves
    ]


def _leaves(schema: dict[str, Any], root: dict[str, Any], depth: int = 0) -> list[dict[str, Any]]:
    """The alternatives of a schema, references followed, a list of types taken apart."""
    options = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(options, list) and depth < 8:
        found = []
        for option in options:
            inner = ToolSet({"": {**root, "properties": {"": option}}}).parameter("", "")
            found += _leaves(inner, root, depth + 1)
        return found
    kinds = schema.get("type")
    if isinstance(kinds, list):
        return [{**schema, "type": kind} for kind in kinds]
    return [schema]


def _is_texts(leaf: dict[str, Any]) -> bool:
    values = leaf["enum"] if isinstance(leaf.get("enum"), list) else [leaf["const"]] if "const" in leaf else []
    return bool(values) and all(isinstance(value, str) for value in values)


def _string(leaf: dict[str, Any]) -> Format:
    if _is_texts(leaf):
        return _either([{"type": "const_string", "value": value} for value in leaf.get("enum") or [leaf["const"]]])
    pattern = leaf.get("pattern")
    if isinstance(pattern, str):
        head = "" if pattern.startswith("^") else "[^<]*"
        tail = "" if pattern.endswith("$") else "[^<]*"
        return {"type": "regex", "pattern": f"{head}({pattern.removeprefix('^').removesuffix('$')}){tail}"}
    least, most = leaf.get("minLength"), leaf.get("maxLength")
    if isinstance(least, int) or isinstance(most, int):
        return {"type": "regex", "pattern": f"[^<]{{{least or 0},{'' if most is None else most}}}"}
    return {"type": "any_text"}


def _member(form: MemberForm, key: str, kind: str, value: Format) -> Format:
    begin = form.begin.replace("KIND", kind).replace("KEY", key)
    return {"type": "tag", "begin": begin, "content": value, "end": form.end}


def _space() -> Format:
    return {"type": "regex", "pattern": _LINES}


def _sequence(*elements: Format) -> Format:
    return {"type": "sequence", "elements": list(elements)}


def _either(elements: list[Format]) -> Format:
    return elements[0] if len(elements) == 1 else {"type": "or", "elements": elements}
