"""`/v1/responses`: create, get, delete, cancel, input_items, on top of the chat path."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from tsd.api.auth import CALLER
from tsd.api.body import read_json
from tsd.api.errors import InvalidRequest
from tsd.api.front import Front, front_of
from tsd.api.job import Job
from tsd.api.params import unsupported
from tsd.api.prepare import Prepared, prepare_chat
from tsd.api.respond import json_response, new_stream, stream_job, wait_for
from tsd.api.response_input import chat_messages, functions_of, output_messages
from tsd.api.response_store import Stored
from tsd.api.routes.native import abort_job
from tsd.api.sse import encode
from tsd.api.wire.chat import (
    ChatMessage,
    ChatRequest,
    JsonSchemaFormat,
    NamedFunction,
    NamedToolChoice,
    ResponseFormat,
)
from tsd.api.wire.responses import DeletedResponse, ItemList, Response, ResponsesRequest, ResponseToolChoice
from tsd.api.wire.responses_stream import ResponseBuilder, response_usage


async def create(request: web.Request) -> web.StreamResponse:
    front = front_of(request)
    front.check_admits()
    body = await read_json(request, ResponsesRequest, front.options.limits)
    _refuse_unsupported(body)
    if (answer := await front.elsewhere(request, body.previous_response_id)) is not None:
        return answer  # what was said before is kept where it was said, and so is what follows
    owner = request[CALLER].owner
    said: list[ChatMessage] = []
    if body.previous_response_id:
        said += front.responses.get(body.previous_response_id, owner, "previous_response_id").conversation
    said += chat_messages(body.input)
    prepared = await prepare_chat(front, _to_chat(body, said))
    job = front.new_job("resp_", request)
    response = _response(body, job, prepared)
    if not body.stream:
        builder = ResponseBuilder(job, response, None)
        job.sink = builder
        front.launch(job, [prepared.prompt], prepared.params, plan=prepared.plan)
        await wait_for(front, job)
        response.usage = response_usage(job)
        _store(front, owner, body, said, response)
        return json_response(response, headers={"X-Request-Id": job.public_id})
    events = new_stream(front, job)
    builder = ResponseBuilder(job, response, events)
    job.sink = builder
    front.launch(job, [prepared.prompt], prepared.params, plan=prepared.plan)

    def last() -> bytes:
        end = builder.last()
        _store(front, owner, body, said, response)
        return end

    return await stream_job(front, request, job, events, first=builder.first, last=last, failure=builder.failed)


async def get(request: web.Request) -> web.StreamResponse:
    stored = front_of(request).responses.get(request.match_info["id"], request[CALLER].owner)
    return web.Response(body=stored.body, content_type="application/json")


async def delete(request: web.Request) -> web.StreamResponse:
    name = request.match_info["id"]
    front_of(request).responses.delete(name, request[CALLER].owner)
    return json_response(DeletedResponse(name))


async def input_items(request: web.Request) -> web.StreamResponse:
    items = front_of(request).responses.get(request.match_info["id"], request[CALLER].owner).input_items
    ids = [item["id"] for item in items]
    return json_response(ItemList(items, ids[0] if ids else None, ids[-1] if ids else None))


async def cancel(request: web.Request) -> web.StreamResponse:
    """Ends one that still runs; its stream closes with what there is."""
    front, name, owner = front_of(request), request.match_info["id"], request[CALLER].owner
    job = front.jobs.get(name)
    if job is not None and job.owner == owner and isinstance(job.sink, ResponseBuilder):
        abort_job(job)
        return json_response({**msgspec.to_builtins(job.sink.response), "status": "cancelled"})
    front.responses.get(name, owner)
    raise InvalidRequest("the response has already ended", param="response_id", code="response_not_cancellable")


def _refuse_unsupported(body: ResponsesRequest) -> None:
    if body.background:
        raise unsupported("background")
    for name in ("conversation", "prompt", "max_tool_calls"):
        if getattr(body, name) is not None:
            raise unsupported(name)
    if body.top_logprobs:
        raise unsupported("top_logprobs", "is not supported here; /v1/chat/completions has it")
    if body.truncation not in (None, "disabled", "auto"):
        raise InvalidRequest("truncation must be auto or disabled", param="truncation")


def _to_chat(body: ResponsesRequest, said: list[ChatMessage]) -> ChatRequest:
    if not said:
        raise InvalidRequest("input must not be empty", param="input")
    instructions = [ChatMessage(role="system", content=body.instructions)] if body.instructions else []
    chat = ChatRequest(messages=[*instructions, *said], model=body.model)
    chat.max_tokens = body.max_output_tokens
    chat.temperature, chat.top_p = body.temperature, body.top_p
    chat.user = body.user[:256] if body.user else None
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
        if choice.type != "function":
            raise unsupported("tool_choice.type", f"{choice.type[:40]!r} is not supported")
        chat.tool_choice = NamedToolChoice(function=NamedFunction(name=choice.name or ""))
    if chat.tools is None and chat.tool_choice == "auto":
        chat.tool_choice = None
    return chat


def _response(body: ResponsesRequest, job: Job, prepared: Prepared) -> Response:
    form: dict[str, Any] = {"type": "text"}
    if body.text is not None and body.text.format is not None:
        form = msgspec.to_builtins(body.text.format)
    choice = msgspec.to_builtins(body.tool_choice) if body.tool_choice is not None else "auto"
    return Response(
        id=job.public_id,
        created_at=job.created,
        model=prepared.model,
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
        user=body.user,
    )


def _store(front: Front, owner: str, body: ResponsesRequest, said: list[ChatMessage], response: Response) -> None:
    if body.store is False:
        return
    data = encode(response)
    conversation = [*said, *output_messages(response.output)]
    items = _items(body)
    size = len(data) + len(encode(items)) + len(encode(conversation))
    front.responses.put(response.id, Stored(owner, data, items, conversation, size))


def _items(body: ResponsesRequest) -> list[dict[str, Any]]:
    if isinstance(body.input, str):
        part = {"type": "input_text", "text": body.input}
        return [{"type": "message", "role": "user", "content": [part], "id": "msg_0"}]
    found = []
    for index, item in enumerate(body.input):
        fields = {key: value for key, value in msgspec.to_builtins(item).items() if value is not None}
        found.append({**fields, "id": item.id or f"item_{index}"})
    return found
