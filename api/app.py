"""The aiohttp application: routes, and the one middleware through which every request passes."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from aiohttp import web

from tsd.api.auth import Keys, cors_headers
from tsd.api.body import BODIES, BodyBudget
from tsd.api.errors import ApiError, HeadersTooLarge, InvalidRequest, MethodNotAllowed, NotFound, TooLarge
from tsd.api.front import FRONT, Front
from tsd.api.fronts.group import came_from_a_front
from tsd.api.openapi import openapi
from tsd.api.respond import json_response
from tsd.api.routes import admin, chat, completions, conversations, messages, native, probes, responses
from tsd.api.snapshots import Snapshots
from tsd.api.sse import error_body
from tsd.api.wire.messages import messages_error

log = logging.getLogger("tsd.api")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("POST", "/v1/chat/completions", chat.chat_completions),
    ("POST", "/v1/completions", completions.completions),
    ("POST", "/v1/responses", responses.create),
    ("GET", "/v1/responses/{id}", responses.get),
    ("DELETE", "/v1/responses/{id}", responses.delete),
    ("POST", "/v1/responses/{id}/cancel", responses.cancel),
    ("GET", "/v1/responses/{id}/input_items", responses.input_items),
    ("POST", "/v1/conversations", conversations.create),
    ("GET", "/v1/conversations/{id}", conversations.get),
    ("POST", "/v1/conversations/{id}", conversations.update),
    ("DELETE", "/v1/conversations/{id}", conversations.delete),
    ("POST", "/v1/conversations/{id}/items", conversations.add_items),
    ("GET", "/v1/conversations/{id}/items", conversations.items),
    ("GET", "/v1/conversations/{id}/items/{item}", conversations.get_item),
    ("DELETE", "/v1/conversations/{id}/items/{item}", conversations.delete_item),
    ("POST", "/v1/messages", messages.messages),
    ("POST", "/v1/messages/count_tokens", messages.count_tokens),
    ("GET", "/v1/models", probes.models),
    ("GET", "/v1/models/{model:.+}", probes.model),
    ("GET", "/openapi.json", openapi),
    ("GET", "/health", probes.health),
    ("GET", "/ready", probes.ready),
    ("GET", "/metrics", probes.metrics),
    ("GET", "/load", probes.load),
    ("GET", "/get_server_info", probes.server_info),
    ("GET", "/get_model_info", probes.model_info),
    ("POST", "/tokenize", native.tokenize),
    ("POST", "/detokenize", native.detokenize),
    ("POST", "/generate", native.generate),
    ("POST", "/abort", native.abort),
    ("GET", "/admin/stream", admin.stream),
    ("GET", "/admin/kernels", admin.kernels),
    ("GET", "/admin/requests", admin.requests),
    ("GET", "/admin/pages", admin.pages),
    ("POST", "/admin/log_level", admin.log_level),
    ("POST", "/flush_cache", admin.flush_cache),
    ("POST", "/pause", admin.pause),
    ("POST", "/resume", admin.resume),
    ("POST", "/drain", admin.drain),
)


def make_app(front: Front) -> web.Application:
    keys = Keys(front.options)

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        front.heard(request.protocol)
        route = request.match_info.route.resource
        name = route.canonical if route is not None else "unknown"
        try:
            response = await _answer(front, keys, request, handler)
        except ApiError as error:
            response = error_response(error, request.path)
        except web.HTTPException as error:
            response = error_response(_of_http(error), request.path)
        except ConnectionResetError:
            raise
        except Exception:
            log.exception("%s %s failed", request.method, name)
            response = error_response(ApiError("the server failed to answer; its log says why"), request.path)
        if front.group is None or not came_from_a_front(request):  # else it was counted where it came from
            front.metrics.http[name, response.status] += 1
        return response

    app = web.Application(middlewares=[guard], client_max_size=front.options.limits.body_bytes)
    app[FRONT] = front
    app[BODIES] = BodyBudget(front.options.limits.bodies_bytes)
    app[admin.SNAPSHOTS] = Snapshots(front)
    for method, path, handler in ROUTES:
        app.router.add_route(method, path, handler)
    if front.options.cors_origins:

        async def add_cors(request: web.Request, response: web.StreamResponse) -> None:
            response.headers.update(cors_headers(front.options, request.headers.get("Origin", "")))

        app.on_response_prepare.append(add_cors)
    return app


async def _answer(front: Front, keys: Keys, request: web.Request, handler: Handler) -> web.StreamResponse:
    size = sum(len(name) + len(value) + 4 for name, value in request.raw_headers)
    if size > front.options.limits.header_bytes:
        raise HeadersTooLarge(f"the headers are over the limit of {front.options.limits.header_bytes} bytes")
    if request.method == "OPTIONS" and front.options.cors_origins:
        return web.Response(status=204)
    keys.check(request)
    if front.group is not None and not came_from_a_front(request):
        other = front.group.answers_for(request)
        if other is not None:
            return await front.forward(request, other)
    return await handler(request)


def error_response(error: ApiError, path: str) -> web.Response:
    """In the dialect of the route."""
    headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    body = messages_error(error) if path.startswith("/v1/messages") else error_body(error)
    return json_response(body, error.status, headers)


def _of_http(error: web.HTTPException) -> ApiError:
    """What aiohttp itself raises, as ours."""
    if error.status == 404:
        return NotFound("there is no such route", code="route_not_found")
    if error.status == 405:
        return MethodNotAllowed("this route does not take that method", code="method_not_allowed")
    if error.status == 413:
        return TooLarge("the body is over the limit")
    known = InvalidRequest(error.reason or "the request is malformed")
    known.status = error.status
    return known
