"""`/v1/completions`: request and response."""

from __future__ import annotations

from typing import Any

import msgspec

from tsd.api.wire.chat import ResponseFormat
from tsd.api.wire.sampling import FINGERPRINT, SamplingFields, Usage


class CompletionRequest(SamplingFields, kw_only=True):
    prompt: str | list[Any] | None = None
    """A text, token ids, or a list of either."""
    echo: bool | None = None
    logprobs: int | None = None
    response_format: ResponseFormat | None = None
    add_special_tokens: bool | None = None

    # Known, and refused unless unset.
    suffix: str | None = None


class CompletionLogprobs(msgspec.Struct):
    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(msgspec.Struct):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None = None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class Completion(msgspec.Struct):
    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None
    object: str = "text_completion"
    system_fingerprint: str = FINGERPRINT
