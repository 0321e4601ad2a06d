"""Regular expressions of a schema: where their anchors stand, and which names they match."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

MAX_PATTERN = 1024
MAX_NAME = 128
MAX_REPEATS = 2
"""In a pattern that is searched for here: the search then takes time quadratic in a name."""
Refuse = Callable[[str], Exception]
_TOKEN = re.compile(r"(?s)\\.|\[(?:\\.|[^\]\\])*\]|.")


def alternatives(pattern: str) -> list[str]:
    """The pattern, taken apart at the bars outside of every bracket where it has anchors: these belong to one side."""
    parts, depth = [""], 0
    for token in _TOKEN.findall(pattern):
        depth += (token == "(") - (token == ")")
        if token == "|" and depth == 0:
            parts.append("")
        else:
            parts[-1] += token
    if len(parts) == 1:
        return parts
    if not any(part.startswith("^") or part.endswith("$") for part in parts):
        return [f"({pattern})"]
    return parts


def checked(pattern: Any, refuse: Refuse) -> str:
    if not isinstance(pattern, str) or len(pattern) > MAX_PATTERN:
        raise refuse(f"a pattern must be a text of at most {MAX_PATTERN} characters")
    return pattern


def matches(pattern: Any, name: str, refuse: Refuse) -> bool:
    """Whether a name matches, searched for as schemas do. Only patterns whose search cannot run away."""
    pattern = checked(pattern, refuse)
    repeats = len(re.findall(r"[*+{]", pattern))
    if len(name) > MAX_NAME or repeats > MAX_REPEATS or re.search(r"\)[*+{?]", pattern):
        raise refuse(f"the pattern {pattern[:80]!r} beside named properties is not supported")
    try:
        return re.search(pattern, name) is not None
    except (re.error, OverflowError, RecursionError) as error:
        raise refuse(f"the pattern {pattern[:80]!r} is not supported") from error
