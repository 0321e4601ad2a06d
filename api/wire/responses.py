"""OpenAI's `/v1/responses`: request items and the response object."""

from __future__ import annotations

from typing import Any

import msgspec


class ResponsePart(msgspec.Struct, kw_only=True):
    type: str = "input_text"
    text: str | None = None
    refusal: str | None = None


class InputItem(msgspec.Struct, kw_only=True):
    """An item of any type; fields that a type does not have are absent. Without a type it is a message."""

    type: str = "message"
    role: str | None = None
    content: str | list[ResponsePart] | None = None
    call_id: str | None = None
    id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[ResponsePart] | None = None
    input: str | None = None
    action: dict[str, Any] | None = None
    summary: list[ResponsePart] | None = None


class ResponseTool(msgspec.Struct, kw_only=True):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class AllowedResponseTool(msgspec.Struct, kw_only=True):
    type: str
    name: str | None = None


class ResponseToolChoice(msgspec.Struct, kw_only=True):
    """`name` with type function; `mode` and `tools` with type allowed_tools."""

    type: str
    name: str | None = None
    mode: str | None = None
    tools: list[AllowedResponseTool] | None = None


class ReasoningOptions(msgspec.Struct, kw_only=True):
    effort: str | None = None
    summary: str | None = None


class TextFormat(msgspec.Struct, kw_only=True):
    type: str
    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextOptions(msgspec.Struct, kw_only=True):
    format: TextFormat | None = None
    verbosity: str | None = None


class ConversationId(msgspec.Struct):
    id: str


class ResponsesRequest(msgspec.Struct, kw_only=True):
    input: str | list[InputItem]
    model: str | None = None
    instructions: str | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: str | ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stream: bool | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    metadata: dict[str, Any] | None = None
    user: str | None = None
    truncation: str | None = None
    prompt_cache_key: str | None = None
    include: list[str] | None = None

    background: bool | None = None
    conversation: str | ConversationId | None = None
    max_tool_calls: int | None = None
    """Of tools that the server itself would run: there are none."""

    top_logprobs: int | None = None

    # Known, and refused unless it says what is done anyway.
    prompt: Any = None


class InputTokensDetails(msgspec.Struct):
    cached_tokens: int


class OutputTokensDetails(msgspec.Struct):
    reasoning_tokens: int


class ResponseUsage(msgspec.Struct):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(msgspec.Struct):
    reason: str


class ResponseError(msgspec.Struct):
    code: str
    message: str


class Response(msgspec.Struct):
    id: str
    created_at: int
    model: str
    status: str
    output: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    tool_choice: Any
    parallel_tool_calls: bool
    text: dict[str, Any]
    reasoning: dict[str, Any]
    temperature: float
    top_p: float
    store: bool
    metadata: dict[str, Any]
    instructions: str | None = None
    max_output_tokens: int | None = None
    previous_response_id: str | None = None
    conversation: ConversationId | None = None
    max_tool_calls: int | None = None
    top_logprobs: int = 0
    user: str | msgspec.UnsetType = msgspec.UNSET
    usage: ResponseUsage | msgspec.UnsetType = msgspec.UNSET
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    truncation: str = "disabled"
    background: bool = False
    service_tier: str = "default"
    object: str = "response"


class DeletedResponse(msgspec.Struct):
    id: str
    deleted: bool = True
    object: str = "response"


class ItemList(msgspec.Struct):
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool = False
    object: str = "list"
