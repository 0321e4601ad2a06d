"""The one table of what a request may ask for, and the checks against it. Knows no wire format.

Every number is configurable; each is tested at its edge. A check raises `InvalidRequest` (or its kin) that names
the parameter, before anything proportional to the number is allocated.
"""

from __future__ import annotations

import math
import re

import msgspec

from tsd.api.errors import InvalidRequest, TooLarge


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Upper bounds, inclusive."""

    body_bytes: int = 32 * 1024 * 1024
    bodies_bytes: int = 512 * 1024 * 1024
    """Of all bodies that are being read or parsed at one time. One of unknown length, or compressed, counts as the
    longest."""
    body_seconds: float = 60.0
    """For a body to arrive."""
    header_seconds: float = 20.0
    """For a connection's first request head to arrive."""
    header_bytes: int = 16 * 1024
    json_depth: int = 64
    n: int = 128
    prompts: int = 256
    sequences: int = 4096
    """Prompts times n."""
    messages: int = 16_384
    stop_strings: int = 16
    stop_characters: int = 256
    stop_token_ids: int = 256
    top_logprobs: int = 20
    logit_bias: int = 1024
    logit_bias_magnitude: float = 100.0
    tools: int = 128
    schema_bytes: int = 64 * 1024
    schema_depth: int = 32
    grammar_depth: int = 200
    """Brackets in a regular expression or EBNF grammar."""
    template_seconds: float = 1.0
    template_bytes: int = 4 * 1024 * 1024
    grammar_seconds: float = 5.0
    name_characters: int = 512
    """Of short strings: user, cache_salt, request ids."""
    queued_requests: int = 4096
    queued_tokens: int = 16_777_216
    deadline_seconds: float = 3600.0
    stream_buffer_bytes: int = 16 * 1024 * 1024
    """What one slow reader may leave unread before its request is aborted."""


def check_range(
    name: str, value: float | None, low: float, high: float, *, low_open: bool = False, integer: bool = False
) -> None:
    """Raises InvalidRequest unless low <= value <= high (low < value where `low_open`). None passes."""
    if value is None:
        return
    if not math.isfinite(value) or value > high or value < low or (low_open and value == low):
        sign = "greater than" if low_open else "at least"
        bound = f"{sign} {low:g}" if high == math.inf else f"{sign} {low:g} and at most {high:g}"
        if integer:
            bound = bound.replace(f"{low:g}", str(int(low)))
            bound = bound if high == math.inf else bound.replace(f"{high:g}", str(int(high)))
        raise InvalidRequest(f"{name} must be {bound}", param=name, code="out_of_range")


def check_count(name: str, count: int, high: int) -> None:
    if count > high:
        raise InvalidRequest(f"{name} has {count} entries; at most {high} are allowed", param=name, code="too_many")


def check_length(name: str, text: str | None, high: int) -> None:
    if text is not None and len(text) > high:
        raise InvalidRequest(
            f"{name} has {len(text)} characters; at most {high} are allowed", param=name, code="too_long"
        )


def check_body_size(size: int | None, limits: Limits) -> None:
    if size is not None and size > limits.body_bytes:
        raise TooLarge(f"the body is over the limit of {limits.body_bytes} bytes")


# A JSON string as one token (possessive: no backtracking, so linear), or a bracket.
_JSON_TOKEN = re.compile(rb'(?s)"[^"\\]*+(?:\\.[^"\\]*+)*+"?|([\[{])|([\]}])')


def json_depth_exceeds(body: bytes, limit: int) -> bool:
    """Whether brackets nest deeper than `limit`, seen without parsing. Linear in the body."""
    if body.count(b"[") + body.count(b"{") <= limit:
        return False
    depth = 0
    for token in _JSON_TOKEN.finditer(body):
        kind = token.lastindex
        if kind == 1:
            depth += 1
            if depth > limit:
                return True
        elif kind == 2:
            depth -= 1
    return False


def check_json_depth(body: bytes, limits: Limits) -> None:
    if json_depth_exceeds(body, limits.json_depth):
        raise InvalidRequest(f"JSON is nested deeper than {limits.json_depth}", code="too_deep")


def value_depth(value: object, limit: int) -> int:
    """Depth of a decoded JSON value, or limit + 1 as soon as it is passed."""
    depth, level = 0, [value]
    while level:
        children: list[object] = []
        for item in level:
            if isinstance(item, dict):
                children.extend(item.values())
            elif isinstance(item, list):
                children.extend(item)
        if any(isinstance(item, (dict, list)) for item in level):
            depth += 1
        if depth > limit:
            return depth
        level = children
    return depth


def check_schema(name: str, schema: object, limits: Limits) -> None:
    """Size and depth of a JSON schema (or a schema's text)."""
    text = schema.encode() if isinstance(schema, str) else msgspec.json.encode(schema)
    if len(text) > limits.schema_bytes:
        raise InvalidRequest(f"{name} is over {limits.schema_bytes} bytes", param=name, code="too_long")
    too_deep = (
        json_depth_exceeds(text, limits.schema_depth)
        if isinstance(schema, str)
        else value_depth(schema, limits.schema_depth) > limits.schema_depth
    )
    if too_deep:
        raise InvalidRequest(f"{name} is nested deeper than {limits.schema_depth}", param=name, code="too_deep")
