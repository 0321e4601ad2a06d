"""Anthropic's `/v1/messages`: request, response, and the events of its stream."""

from __future__ import annotations

from typing import Any

import msgspec

from tsd.api.errors import ApiError


class Block(msgspec.Struct, kw_only=True):
    """A content block of any type; fields that a type does not have are absent."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None
    tool_use_id: str | None = None
    content: str | list[Block] | None = None
    is_error: bool | None = None
    source: Any = None
    title: str | None = None


class InputMessage(msgspec.Struct, kw_only=True):
    role: str
    content: str | list[Block]


class MessagesTool(msgspec.Struct, kw_only=True):
    name: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    type: str | None = None
    strict: bool | None = None


class MessagesToolChoice(msgspec.Struct, kw_only=True):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, kw_only=True):
    type: str
    budget_tokens: int | None = None


class Metadata(msgspec.Struct, kw_only=True):
    user_id: str | None = None


class OutputFormat(msgspec.Struct, kw_only=True):
    type: str
    schema: dict[str, Any] | None = None


class OutputConfig(msgspec.Struct, kw_only=True):
    effort: str | None = None
    format: OutputFormat | None = None


class CountTokensRequest(msgspec.Struct, kw_only=True):
    messages: list[InputMessage]
    model: str | None = None
    system: str | list[Block] | None = None
    tools: list[MessagesTool] | None = None
    tool_choice: MessagesToolChoice | None = None
    thinking: Thinking | None = None


class MessagesRequest(CountTokensRequest, kw_only=True):
    max_tokens: int
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: Metadata | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None


class ThinkingTokens(msgspec.Struct):
    thinking_tokens: int


class MessagesUsage(msgspec.Struct):
    """`input_tokens` are those that no cache held."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    output_tokens_details: ThinkingTokens | None = None
    cache_creation: None = None
    server_tool_use: None = None
    inference_geo: None = None
    service_tier: str = "standard"


class MessageAnswer(msgspec.Struct):
    id: str
    model: str
    content: list[dict[str, Any]]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessagesUsage
    stop_details: None = None
    container: None = None
    type: str = "message"
    role: str = "assistant"


class ModelInfo(msgspec.Struct):
    id: str
    display_name: str
    created_at: str
    """RFC 3339."""
    max_input_tokens: int | None
    max_tokens: int | None
    capabilities: None = None
    type: str = "model"


class ModelInfos(msgspec.Struct):
    data: list[ModelInfo]
    first_id: str | None
    last_id: str | None
    has_more: bool = False


class TokenCount(msgspec.Struct):
    input_tokens: int


class MessagesErrorDetail(msgspec.Struct):
    type: str
    message: str


class MessagesError(msgspec.Struct):
    error: MessagesErrorDetail
    request_id: str | None = None
    type: str = "error"


def text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text, "citations": None}


def tool_block(call_id: str, name: str, value: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": value, "caller": {"type": "direct"}}


_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def messages_error(error: ApiError) -> MessagesError:
    default = "invalid_request_error" if error.status < 500 else "api_error"
    return MessagesError(MessagesErrorDetail(_ERROR_TYPES.get(error.status, default), error.message))
