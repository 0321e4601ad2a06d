"""`/v1/chat/completions`: request, response and the byte templates of its stream's chunks."""

from __future__ import annotations

from typing import Any

import msgspec

from tsd.api.wire.sampling import FINGERPRINT, SamplingFields, Usage


class ContentPart(msgspec.Struct, kw_only=True):
    type: str
    text: str | None = None
    refusal: str | None = None


class FunctionCall(msgspec.Struct, kw_only=True):
    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(msgspec.Struct, kw_only=True, omit_defaults=True):
    id: str | None = None
    type: str | None = None
    function: FunctionCall | None = None


class ChatMessage(msgspec.Struct, kw_only=True):
    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class FunctionTool(msgspec.Struct, kw_only=True):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, kw_only=True):
    type: str
    function: FunctionTool | None = None


class NamedFunction(msgspec.Struct, kw_only=True):
    name: str


class AllowedTool(msgspec.Struct, kw_only=True):
    function: NamedFunction
    type: str = "function"


class AllowedTools(msgspec.Struct, kw_only=True):
    """Of the tools described, those that may be called."""

    tools: list[AllowedTool]
    mode: str = "auto"
    """auto or required"""


class NamedToolChoice(msgspec.Struct, kw_only=True):
    """`function` with type function, `allowed_tools` with type allowed_tools."""

    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None
    type: str = "function"


class JsonSchemaFormat(msgspec.Struct, kw_only=True):
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True):
    """`format`, `structures` and `triggers` belong to structural_tag."""

    type: str
    json_schema: JsonSchemaFormat | None = None
    structures: list[Any] | None = None
    triggers: list[str] | None = None
    format: dict[str, Any] | None = None


class ChatRequest(SamplingFields, kw_only=True):
    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Tool] | None = None
    tool_choice: str | NamedToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    include_reasoning: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    echo: bool | None = None

    # Known, and refused unless they say what is done anyway.
    chat_template: str | None = None
    functions: list[Any] | None = None
    function_call: Any = None
    modalities: list[str] | None = None
    audio: Any = None
    prediction: Any = None
    web_search_options: Any = None
    documents: list[Any] | None = None


class AnswerFunction(msgspec.Struct):
    name: str
    arguments: str


class AnswerToolCall(msgspec.Struct):
    id: str
    function: AnswerFunction
    type: str = "function"


class AnswerMessage(msgspec.Struct):
    content: str | None
    refusal: str | None = None
    reasoning: str | msgspec.UnsetType | None = msgspec.UNSET
    reasoning_content: str | msgspec.UnsetType | None = msgspec.UNSET
    tool_calls: list[AnswerToolCall] | msgspec.UnsetType = msgspec.UNSET
    role: str = "assistant"


class TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(msgspec.Struct):
    content: list[TokenLogprob]
    refusal: None = None


class Choice(msgspec.Struct):
    index: int
    message: AnswerMessage
    logprobs: ChoiceLogprobs | None
    finish_reason: str
    stop_reason: str | int | None = None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatCompletion(msgspec.Struct):
    id: str
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    object: str = "chat.completion"
    system_fingerprint: str = FINGERPRINT
    service_tier: str | None = None
