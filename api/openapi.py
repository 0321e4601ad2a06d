"""The OpenAPI document, made from the wire types. `GET /openapi.json`."""

from __future__ import annotations

import functools
import re
from typing import Any, NamedTuple

import msgspec
from aiohttp import web

from tsd.api.wire import chat, completions, conversations, messages, native, responses, sampling


class Operation(NamedTuple):
    method: str
    path: str
    summary: str
    request: Any = None
    response: Any = None
    stream: bool = False
    error: Any = sampling.ErrorBody
    media: str = "application/json"
    query: tuple[str, ...] = ()
    """Parameters of the query, by their names in QUERY."""


QUERY: dict[str, dict[str, Any]] = {
    "after": {"type": "string"},
    "bin": {"type": "string", "pattern": "^[0-9]{1,9}$"},
    "engine": {"type": "string"},
    "id": {"type": "string"},
    "interval": {"type": "number"},
    "limit": {"type": "integer", "minimum": 1, "maximum": 100},
    "order": {"enum": ["asc", "desc"]},
    "starting_after": {"type": "integer", "minimum": -1, "maximum": 999_999_999},
    "stream": {"type": "boolean"},
}
PAGE = ("after", "limit", "order")

OPERATIONS: tuple[Operation, ...] = (
    Operation("post", "/v1/chat/completions", "Answer a conversation", chat.ChatRequest, chat.ChatCompletion, True),
    Operation(
        "post", "/v1/completions", "Continue a text", completions.CompletionRequest, completions.Completion, True
    ),
    Operation("post", "/v1/responses", "Answer items", responses.ResponsesRequest, responses.Response, True),
    Operation(
        "get", "/v1/responses/{id}", "A response", None, responses.Response, True, query=("stream", "starting_after")
    ),
    Operation("delete", "/v1/responses/{id}", "Forget a response", None, responses.DeletedResponse),
    Operation("post", "/v1/responses/{id}/cancel", "End a running response", None, responses.Response),
    Operation(
        "get", "/v1/responses/{id}/input_items", "What a response was asked", None, responses.ItemList, query=PAGE
    ),
    Operation(
        "post",
        "/v1/conversations",
        "Keep a conversation",
        conversations.ConversationRequest,
        conversations.Conversation,
    ),
    Operation("get", "/v1/conversations/{id}", "A conversation", None, conversations.Conversation),
    Operation(
        "post",
        "/v1/conversations/{id}",
        "Change a conversation's metadata",
        conversations.ConversationUpdate,
        conversations.Conversation,
    ),
    Operation("delete", "/v1/conversations/{id}", "Forget a conversation", None, conversations.DeletedConversation),
    Operation("post", "/v1/conversations/{id}/items", "Add items", conversations.ItemsRequest, responses.ItemList),
    Operation("get", "/v1/conversations/{id}/items", "A conversation's items", None, responses.ItemList, query=PAGE),
    Operation("get", "/v1/conversations/{id}/items/{item}", "One item", None, dict[str, Any]),
    Operation("delete", "/v1/conversations/{id}/items/{item}", "Forget one item", None, conversations.Conversation),
    Operation(
        "post",
        "/v1/messages",
        "Answer a conversation (Anthropic)",
        messages.MessagesRequest,
        messages.MessageAnswer,
        True,
        messages.MessagesError,
    ),
    Operation(
        "post",
        "/v1/messages/count_tokens",
        "Tokens of a conversation (Anthropic)",
        messages.CountTokensRequest,
        messages.TokenCount,
        error=messages.MessagesError,
    ),
    Operation("get", "/v1/models", "Models served", None, sampling.ModelList),
    Operation("get", "/v1/models/{model}", "One model", None, sampling.ModelCard),
    Operation("post", "/tokenize", "Text to token ids", native.TokenizeRequest, native.Tokenized),
    Operation("post", "/detokenize", "Token ids to text", native.DetokenizeRequest, native.Detokenized),
    Operation(
        "post",
        "/generate",
        "Continue token ids (a list of answers when n > 1)",
        native.GenerateRequest,
        native.Generated | list[native.Generated],
        True,
    ),
    Operation("post", "/abort", "End a running request", native.AbortRequest),
    Operation("get", "/health", "Whether the engines live"),
    Operation("get", "/ready", "Whether requests are taken"),
    Operation("get", "/metrics", "Prometheus figures", media="text/plain"),
    Operation("get", "/load", "Requests in flight"),
    Operation("get", "/get_server_info", "Options and engines"),
    Operation("get", "/get_model_info", "The model"),
    Operation("get", "/admin/stream", "Snapshots for the console", media="text/event-stream", query=("interval",)),
    Operation("get", "/admin/kernels", "Which kernels run and why"),
    Operation("get", "/admin/requests", "Requests in flight, or one's timeline", query=("id",)),
    Operation("get", "/admin/pages", "Owners of cache pages", query=("bin", "engine")),
    Operation("post", "/admin/log_level", "Set the log level"),
    Operation("post", "/flush_cache", "Empty the prefix cache"),
    Operation("post", "/pause", "Stop taking requests"),
    Operation("post", "/resume", "Take requests again"),
    Operation("post", "/drain", "Let requests end and take no more"),
    Operation("get", "/openapi.json", "This document"),
)


@functools.cache
def document() -> bytes:
    types = [kind for op in OPERATIONS for kind in (op.request, op.response, op.error) if kind is not None]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    schema_of = dict(zip(map(repr, types), schemas, strict=True))
    paths: dict[str, Any] = {}
    for op in OPERATIONS:
        paths.setdefault(op.path, {})[op.method] = _operation(op, schema_of)
    whole = {
        "openapi": "3.1.0",
        "info": {"title": "tsd", "version": sampling.VERSION},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }
    return msgspec.json.encode(whole)


def _operation(op: Operation, schema_of: dict[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {op.media: {"schema": schema_of[repr(op.response)] if op.response else {}}}
    if op.stream:
        content["text/event-stream"] = {}
    error = {"description": "A fault", "content": {"application/json": {"schema": schema_of[repr(op.error)]}}}
    found: dict[str, Any] = {
        "summary": op.summary,
        "operationId": f"{op.method}{re.sub(r'[^a-z]+', '_', op.path)}".rstrip("_"),
        "responses": {"200": {"description": "The answer", "content": content}, "4XX": error, "5XX": error},
    }
    names = re.findall(r"{(\w+)}", op.path)
    if names or op.query:
        found["parameters"] = [
            *({"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names),
            *({"name": name, "in": "query", "schema": QUERY[name]} for name in op.query),
        ]
    if op.request is not None:
        found["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema_of[repr(op.request)]}},
        }
    return found


async def openapi(request: web.Request) -> web.StreamResponse:
    return web.Response(body=document(), content_type="application/json")
