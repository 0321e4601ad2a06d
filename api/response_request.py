"""What a request of `/v1/responses` says, as a chat request; what it builds on, and where its response is kept."""

from __future__ import annotations

from typing import Any

import msgspec

from tsd.api.background import EventLog
from tsd.api.conversations import KeptConversation
from tsd.api.errors import InvalidRequest
from tsd.api.front import Front
from tsd.api.job import Job
from tsd.api.params import unsupported
from tsd.api.response_input import chat_messages, functions_of, output_messages, stored_items
from tsd.api.response_store import Stored
from tsd.api.sse import encode
from tsd.api.wire.chat import (
    AllowedTool,
    AllowedTools,
    ChatMessage,
    ChatRequest,
    JsonSchemaFormat,
    NamedFunction,
    NamedToolChoice,
    ResponseFormat,
)
from tsd.api.wire.responses import ConversationId, InputItem, Response, ResponsesRequest, ResponseToolChoice


class Asked:
    """What one request says and builds on, and where its response is kept."""

    def __init__(self, front: Front, owner: str, body: ResponsesRequest) -> None:
        """Raises NotFound for a response or conversation that is not kept."""
        self.owner = owner
        self.body = body
        self._front = front
        self._conversation: KeptConversation | None = None
        before: list[ChatMessage] = []
        if body.previous_response_id:
            param = "previous_response_id"
            stored = front.responses.get(body.previous_response_id, owner, param)
            if stored.running is not None:
                raise InvalidRequest("the response still runs", param=param, code="response_in_progress")
            before += stored.conversation
        elif body.conversation:
            self._conversation = front.conversations.get(builds_on(body) or "", owner, "conversation")
            front.conversations.check_room(self._conversation, 1)
            before += chat_messages(msgspec.convert(self._conversation.items, list[InputItem]))
        self.said = [*before, *chat_messages(body.input)]

    def keep(self, response: Response, log: EventLog | None = None) -> None:
        """The response is over."""
        items = stored_items(self.body.input)
        if self._conversation is not None and response.status != "failed":
            self._front.conversations.add(self._conversation, [*items, *response.output])
        if self.body.store is False:
            return
        data = encode(response)
        conversation = [*self.said, *output_messages(response.output)]
        size = len(data) + len(encode(items)) + len(encode(conversation)) + (log.size if log else 0)
        stored = Stored(self.owner, data, items, conversation, size, response.background, None, log)
        self._front.responses.put(response.id, stored)


def builds_on(body: ResponsesRequest) -> str | None:
    """The id of the response or the conversation that the request goes on with."""
    if isinstance(body.conversation, ConversationId):
        return body.conversation.id
    return body.previous_response_id or body.conversation


def refuse_unsupported(body: ResponsesRequest) -> None:
    if body.background and body.store is False:
        raise InvalidRequest("a response in the background must be stored", param="background")
    if body.conversation and body.previous_response_id:
        raise InvalidRequest("give previous_response_id or conversation, not both", param="previous_response_id")
    if body.prompt is not None:
        raise unsupported("prompt", "is not supported: this server keeps no prompt templates")
    if body.truncation not in (None, "disabled", "auto"):
        raise InvalidRequest("truncation must be auto or disabled", param="truncation")


def wants_logprobs(body: ResponsesRequest) -> bool:
    return body.top_logprobs not in (None, 0) or "message.output_text.logprobs" in (body.include or ())


def to_chat(body: ResponsesRequest, said: list[ChatMessage]) -> ChatRequest:
    if not said:
        raise InvalidRequest("input must not be empty", param="input")
    instructions = [ChatMessage(role="system", content=body.instructions)] if body.instructions else []
    chat = ChatRequest(messages=[*instructions, *said], model=body.model)
    chat.max_tokens = body.max_output_tokens
    chat.temperature, chat.top_p = body.temperature, body.top_p
    chat.user = body.user[:256] if body.user else None
    if wants_logprobs(body):
        chat.logprobs, chat.top_logprobs = True, body.top_logprobs
    chat.tools = functions_of(body.tools)
    chat.parallel_tool_calls = body.parallel_tool_calls
    if body.reasoning is not None:
        chat.reasoning_effort = body.reasoning.effort
    form = body.text.format if body.text else None
    if form is not None:
        schema = JsonSchemaFormat(schema=form.schema) if form.type == "json_schema" else None
        chat.response_format = ResponseFormat(type=form.type, json_schema=schema)
    choice = body.tool_choice
    if isinstance(choice, str):
        chat.tool_choice = choice
    elif isinstance(choice, ResponseToolChoice):
        chat.tool_choice = _tool_choice(choice)
    if chat.tools is None and chat.tool_choice == "auto":
        chat.tool_choice = None
    return chat


def _tool_choice(choice: ResponseToolChoice) -> NamedToolChoice:
    if choice.type == "function":
        return NamedToolChoice(function=NamedFunction(name=choice.name or ""))
    if choice.type != "allowed_tools":
        raise unsupported("tool_choice.type", f"{choice.type[:40]!r} is not supported")
    allowed = []
    for index, tool in enumerate(choice.tools or ()):
        if tool.type != "function":
            raise unsupported(f"tool_choice.tools[{index}].type", f"{tool.type[:40]!r} is not supported; function is")
        allowed.append(AllowedTool(function=NamedFunction(name=tool.name or "")))
    return NamedToolChoice(type="allowed_tools", allowed_tools=AllowedTools(tools=allowed, mode=choice.mode or "auto"))


def response_of(body: ResponsesRequest, job: Job, model: str) -> Response:
    form: dict[str, Any] = {"type": "text"}
    if body.text is not None and body.text.format is not None:
        form = msgspec.to_builtins(body.text.format)
    choice = msgspec.to_builtins(body.tool_choice) if body.tool_choice is not None else "auto"
    return Response(
        id=job.public_id,
        created_at=job.created,
        model=model,
        status="in_progress",
        output=[],
        tools=[msgspec.to_builtins(tool) for tool in body.tools or () if tool.type == "function"],
        tool_choice=choice,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        text={"format": form},
        reasoning={
            "effort": body.reasoning.effort if body.reasoning else None,
            "summary": body.reasoning.summary if body.reasoning else None,
        },
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        store=body.store is not False,
        metadata=body.metadata or {},
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        previous_response_id=body.previous_response_id,
        conversation=ConversationId(body.conversation) if isinstance(body.conversation, str) else body.conversation,
        max_tool_calls=body.max_tool_calls,
        top_logprobs=body.top_logprobs or 0,
        user=msgspec.UNSET if body.user is None else body.user,
    )
