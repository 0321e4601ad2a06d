"""What xgrammar would get wrong in a JSON schema is taken out before it sees it, and put into its rules afterwards:
numbers between bounds (it lets text through that is no number) and property names that need escapes."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

from tsd.engine.number_rules import DECIMALS, Bound, number_rule

_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_VALUES = frozenset(("enum", "const", "default", "examples"))
"""Keywords whose value is no schema."""
_MAPS = frozenset(("properties", "$defs", "definitions", "patternProperties"))
_PLAIN_NAME = re.compile(r'[^"\\\x00-\x1f\x7f]*')


class SchemaHoles:
    """One schema's. `hide` what cannot stay, let xgrammar make rules, `reveal`."""

    def __init__(self, text: str) -> None:
        self._mark = "tsd"
        while self._mark in text:
            self._mark += "x"
        self._fillings: dict[str, str] = {}
        """EBNF as it stands in the rules → what replaces it."""
        self._names: dict[str, str] = {}

    def hide(self, schema: Any) -> Any:
        """Raises ValueError for a number that cannot be."""
        if not isinstance(schema, dict):
            return [self.hide(item) for item in schema] if isinstance(schema, list) else schema
        if schema.get("type") == "number" and any(name in schema for name in _BOUNDS):
            return self._number(schema)
        found: dict[str, Any] = {}
        for key, value in schema.items():
            if key in _VALUES:
                found[key] = value
            elif key in _MAPS and isinstance(value, dict):
                rename = self._name if key == "properties" else str
                found[key] = {rename(name): self.hide(item) for name, item in value.items()}
            elif key == "required" and isinstance(value, list):
                found[key] = [self._name(name) if isinstance(name, str) else name for name in value]
            else:
                found[key] = self.hide(value)
        return found

    def reveal(self, rules: str) -> str:
        for hole, filling in self._fillings.items():
            rules = rules.replace(hole, filling)
        return rules

    def _token(self) -> str:
        return f"{self._mark}{len(self._fillings)}e"

    def _number(self, schema: dict[str, Any]) -> dict[str, Any]:
        lows = [Bound(_decimal(schema[k]), k != "minimum") for k in ("minimum", "exclusiveMinimum") if k in schema]
        highs = [Bound(_decimal(schema[k]), k != "maximum") for k in ("maximum", "exclusiveMaximum") if k in schema]
        low, high = max(lows, default=None), min(highs, key=lambda b: (b.value, not b.exclusive), default=None)
        token = self._token()
        self._fillings[f'"\\"{token}\\""'] = f"({number_rule(low, high, _decimals(schema.get('multipleOf')))})"
        return {"const": token}

    def _name(self, name: str) -> str:
        if _PLAIN_NAME.fullmatch(name):
            return name
        if name not in self._names:
            token = self._names[name] = self._token()
            written = json.dumps(json.dumps(name, ensure_ascii=False)[1:-1], ensure_ascii=False)[1:-1]
            self._fillings[f'\\"{token}\\"'] = f'\\"{written}\\"'
        return self._names[name]


def _decimal(value: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("a bound of a number must be a number")
    return Decimal(repr(value))


def _decimals(multiple: Any) -> int:
    """Digits after the point for a multiple of 1, 0.1, 0.01 …"""
    if multiple is None:
        return DECIMALS
    step = _decimal(multiple).normalize()
    if step.as_tuple().digits != (1,) or not -DECIMALS <= step.as_tuple().exponent <= 0:  # type: ignore[operator]
        raise ValueError("multipleOf is supported for 1, 0.1, 0.01 and so on")
    return -int(step.as_tuple().exponent)
