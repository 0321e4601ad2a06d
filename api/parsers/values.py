"""Parameter values that a model wrote as plain text → JSON text, guided by the tool's schema."""

from __future__ import annotations

import json
from typing import Any

import msgspec


def types_of(schema: dict[str, Any]) -> set[str]:
    found = schema.get("type")
    types = set(found) if isinstance(found, list) else {found} if isinstance(found, str) else set()
    for key in ("anyOf", "oneOf"):
        for option in schema.get(key) or ():
            if isinstance(option, dict):
                types |= types_of(option)
    return types


def to_json(text: str, schema: dict[str, Any]) -> str:
    """JSON for `text`: a string where the schema wants one, else what it parses as, else a string."""
    types = types_of(schema)
    if types and types <= {"string"}:
        return quote(text)
    stripped = text.strip()
    if "null" in types and stripped in ("null", "None"):
        return "null"
    if "string" in types:
        return quote(text)
    if "boolean" in types and stripped in ("True", "False"):
        return stripped.lower()
    try:
        msgspec.json.decode(stripped, type=msgspec.Raw)
        json.loads(stripped)
    except (ValueError, RecursionError):
        return quote(text)
    if not types and stripped[:1] not in ("{", "["):
        # Without a schema a bare word or number could be either; only structures are taken for JSON.
        return stripped if stripped in ("true", "false", "null") or _is_number(stripped) else quote(text)
    return stripped


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
