"""Bytes of OpenAI-style stream chunks: everything but the text is encoded once a request."""

from __future__ import annotations

from typing import Any

import msgspec

from tsd.api.errors import ApiError
from tsd.api.wire.sampling import ErrorBody, ErrorDetail

DONE = b"data: [DONE]\n\n"
encode = msgspec.json.Encoder().encode


def event(value: Any) -> bytes:
    return b"data: " + encode(value) + b"\n\n"


def named_event(name: str, value: Any) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + encode(value) + b"\n\n"


def error_body(error: ApiError) -> ErrorBody:
    return ErrorBody(ErrorDetail(error.message, error.type, error.param, error.code))


def error_event(error: ApiError) -> bytes:
    return event(error_body(error))
