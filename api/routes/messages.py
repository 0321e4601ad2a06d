"""Anthropic's dialect: `POST /v1/messages` and `/v1/messages/count_tokens`, on top of the chat path."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from tsd.api.body import read_json
from tsd.api.errors import InvalidRequest
from tsd.api.front import front_of
from tsd.api.job import Collector, Job
from tsd.api.params import unsupported
from tsd.api.prepare import prepare_chat, render_chat
from tsd.api.respond import json_response, new_stream, stream_job, wait_for
from tsd.api.sse import encode
from tsd.api.tools import plan_tools
from tsd.api.wire.chat import (
    ChatMessage,
    ChatRequest,
    FunctionCall,
    FunctionTool,
    JsonSchemaFormat,
    NamedFunction,
    NamedToolChoice,
    ResponseFormat,
    Tool,
    ToolCall,
)
from tsd.api.wire.messages import (
    Block,
    CountTokensRequest,
    InputMessage,
    MessageAnswer,
    MessagesRequest,
    MessagesTool,
    OutputFormat,
    TokenCount,
    text_block,
    tool_block,
)
from tsd.api.wire.messages_stream import MessagesStream, messages_failure, messages_usage, stop_of

BILLING_HEADER = "x-anthropic-billing-header"
"""A system block that begins so changes with every request; kept, it would defeat prefix reuse."""


async def messages(request: web.Request) -> web.StreamResponse:
    front = front_of(request)
    front.check_admits()
    body = await read_json(request, MessagesRequest, front.options.limits)
    model, params, prompt, plan = await prepare_chat(front, to_chat(body))
    job = front.new_job("msg_", request)
    if not body.stream:
        front.launch(job, [prompt], params, plan=plan)
        await wait_for(front, job)
        return json_response(_answer(job, model), headers={"request-id": job.public_id})
    events = new_stream(front, job)
    sink = MessagesStream(events, job, model)
    job.sink = sink
    front.launch(job, [prompt], params, plan=plan)
    return await stream_job(front, request, job, events, first=sink.first, last=sink.last, failure=messages_failure)


async def count_tokens(request: web.Request) -> web.StreamResponse:
    front = front_of(request)
    limits = front.options.limits
    body = await read_json(request, CountTokensRequest, limits)
    front.check_model(body.model)
    chat = _chat_of(body)
    tools = plan_tools(chat.tools, chat.tool_choice, chat.parallel_tool_calls, limits)
    return json_response(TokenCount(len(await render_chat(front, chat, tools.template))))


def to_chat(body: MessagesRequest) -> ChatRequest:
    chat = _chat_of(body)
    chat.max_tokens = body.max_tokens
    chat.stop = body.stop_sequences
    chat.temperature, chat.top_p, chat.top_k = body.temperature, body.top_p, body.top_k
    chat.user = body.metadata.user_id[:256] if body.metadata and body.metadata.user_id else None
    form = body.output_format or (body.output_config.format if body.output_config else None)
    if form is not None:
        chat.response_format = _format(form)
    if body.output_config is not None and body.output_config.effort is not None:
        chat.reasoning_effort = body.output_config.effort
    return chat


def _format(form: OutputFormat) -> ResponseFormat | None:
    if form.type == "text":
        return None
    if form.type != "json_schema":
        raise unsupported("output_format.type", f"{form.type[:40]!r} is not supported")
    return ResponseFormat(type="json_schema", json_schema=JsonSchemaFormat(schema=form.schema))


def _chat_of(body: CountTokensRequest) -> ChatRequest:
    if not body.messages:
        raise InvalidRequest("messages must not be empty", param="messages")
    chat = ChatRequest(messages=[*_system(body.system)], model=body.model)
    for index, message in enumerate(body.messages):
        chat.messages += _messages(message, f"messages[{index}]")
    if _is_prefill(body.messages[-1]):
        chat.continue_final_message, chat.add_generation_prompt = True, False
    if body.thinking is not None:
        chat.chat_template_kwargs = {"enable_thinking": body.thinking.type != "disabled"}
    chat.tools = _tools(body.tools)
    choice = body.tool_choice
    if choice is not None and chat.tools is not None:
        if choice.disable_parallel_tool_use:
            chat.parallel_tool_calls = False
        if choice.type == "tool":
            chat.tool_choice = NamedToolChoice(function=NamedFunction(name=choice.name or ""))
        elif choice.type in ("auto", "any", "none"):
            chat.tool_choice = "required" if choice.type == "any" else choice.type
        else:
            raise InvalidRequest("tool_choice.type must be auto, any, tool or none", param="tool_choice.type")
    return chat


def _is_prefill(last: InputMessage) -> bool:
    """A conversation that ends in the assistant's own text is answered by going on with it."""
    if last.role != "assistant":
        return False
    return isinstance(last.content, str) or (bool(last.content) and all(b.type == "text" for b in last.content))


def _tools(tools: list[MessagesTool] | None) -> list[Tool] | None:
    """Tools that the server itself would run (web search and such) are skipped: they carry no schema."""
    found = [
        Tool(
            type="function",
            function=FunctionTool(
                name=tool.name or "",
                description=tool.description,
                parameters=tool.input_schema,
                strict=tool.strict,
            ),
        )
        for tool in tools or ()
        if tool.input_schema is not None or tool.type in (None, "custom")
    ]
    return found or None


def _system(system: str | list[Block] | None) -> list[ChatMessage]:
    if isinstance(system, list):
        texts = [block.text or "" for block in system if block.type == "text"]
        system = "\n\n".join(text for text in texts if not text.lstrip().startswith(BILLING_HEADER))
    return [ChatMessage(role="system", content=system)] if system else []


def _messages(message: InputMessage, where: str) -> list[ChatMessage]:
    if message.role not in ("user", "assistant", "system"):
        raise InvalidRequest(f"{where}.role must be user or assistant", param=f"{where}.role")
    if isinstance(message.content, str):
        return [ChatMessage(role=message.role, content=message.content)]
    return _assistant(message.content) if message.role == "assistant" else _user(message, where)


def _assistant(blocks: list[Block]) -> list[ChatMessage]:
    texts = [block.text for block in blocks if block.type == "text" and block.text]
    thoughts = [block.thinking for block in blocks if block.type == "thinking" and block.thinking]
    calls = [
        ToolCall(
            id=block.id,
            type="function",
            function=FunctionCall(name=block.name or "", arguments=encode(block.input or {}).decode()),
        )
        for block in blocks
        if block.type == "tool_use"
    ]
    return [
        ChatMessage(
            role="assistant",
            content="\n".join(texts),
            reasoning_content="\n".join(thoughts) or None,
            tool_calls=calls or None,
        )
    ]


def _user(message: InputMessage, where: str) -> list[ChatMessage]:
    """Tool results become messages of their own, in order with the texts between them."""
    found: list[ChatMessage] = []
    texts: list[str] = []

    def flush() -> None:
        if texts:
            found.append(ChatMessage(role=message.role, content="\n".join(texts)))
            texts.clear()

    assert isinstance(message.content, list)
    for index, block in enumerate(message.content):
        if block.type == "tool_result":
            flush()
            content = _text_of(block.content, f"{where}.content[{index}].content")
            found.append(ChatMessage(role="tool", content=content, tool_call_id=block.tool_use_id))
        else:
            texts.append(_text_block(block, f"{where}.content[{index}]"))
    flush()
    return found or [ChatMessage(role=message.role, content="")]


def _text_of(content: str | list[Block] | None, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(_text_block(block, f"{where}[{index}]") for index, block in enumerate(content))


def _text_block(block: Block, where: str) -> str:
    """Text, and what holds text: a search result, a document that came as text."""
    if block.type in ("text", "tool_reference"):
        return block.text or ""
    if block.type == "search_result":
        return "\n".join(filter(None, (block.title, _text_of(block.content, f"{where}.content"))))
    source = block.source
    if block.type == "document" and isinstance(source, dict):
        if source.get("type") == "text" and isinstance(source.get("data"), str):
            return "\n".join(filter(None, (block.title, source["data"])))
        if source.get("type") == "content":
            try:
                inner = msgspec.convert(source.get("content"), str | list[Block] | None)
            except msgspec.ValidationError as error:
                raise InvalidRequest(f"{where}.source.content: {error}", param=where) from error
            return "\n".join(filter(None, (block.title, _text_of(inner, f"{where}.source.content"))))
    raise unsupported(where, f"is a block of type {block.type[:40]!r}; only text is supported")


def _answer(job: Job, model: str) -> MessageAnswer:
    assert isinstance(job.sink, Collector)
    sequence = job.sequences[0]
    assert sequence.ending is not None
    got = job.sink.of(0)
    content: list[dict[str, Any]] = []
    if got.reasoning:
        content.append({"type": "thinking", "thinking": "".join(got.reasoning), "signature": ""})
    if got.content:
        content.append(text_block(got.text))
    for call_id, name, arguments in got.calls:
        content.append(tool_block(call_id, name, _input(arguments)))
    reason, stop = stop_of(sequence.ending)
    return MessageAnswer(job.public_id, model, content, reason, stop, messages_usage(job))


def _input(arguments: str) -> dict[str, Any]:
    """The dialect wants an object: what is none (malformed, or cut by the length) is kept as text in one."""
    try:
        value = msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"_unparsed": arguments}
