"""`/v1/responses`: create, get, delete, cancel, input_items, on top of the chat path; also in the background."""

from __future__ import annotations

import re

import msgspec
from aiohttp import web

from tsd.api.auth import CALLER
from tsd.api.background import EventLog, follow
from tsd.api.body import read_json
from tsd.api.errors import InvalidRequest
from tsd.api.front import Front, front_of
from tsd.api.job import Job
from tsd.api.paging import page_of
from tsd.api.prepare import Prepared, prepare_chat
from tsd.api.respond import json_response, new_stream, stream_job, wait_for
from tsd.api.response_input import stored_items
from tsd.api.response_request import Asked, builds_on, refuse_unsupported, response_of, to_chat, wants_logprobs
from tsd.api.response_store import Stored
from tsd.api.routes.native import abort_job
from tsd.api.sse import encode
from tsd.api.wire.responses import DeletedResponse, Response, ResponsesRequest
from tsd.api.wire.responses_stream import ResponseBuilder, response_usage


async def create(request: web.Request) -> web.StreamResponse:
    front = front_of(request)
    front.check_admits()
    body = await read_json(request, ResponsesRequest, front.options.limits)
    refuse_unsupported(body)
    if (answer := await front.elsewhere(request, builds_on(body))) is not None:
        return answer  # what was said before is kept where it was said, and so is what follows
    asked = Asked(front, request[CALLER].owner, body)
    prepared = await prepare_chat(front, to_chat(body, asked.said))
    job = front.new_job("resp_", request)
    response = response_of(body, job, prepared.model)
    tokenizer = front.loaded.tokenizer if wants_logprobs(body) else None
    if body.background:
        return await _in_background(front, request, job, response, asked, prepared)
    if not body.stream:
        builder = ResponseBuilder(job, response, None, tokenizer)
        job.sink = builder
        front.launch(job, [prepared.prompt], prepared.params, plan=prepared.plan)
        await wait_for(front, job)
        response.usage = response_usage(job)
        asked.keep(response)
        return json_response(response, headers={"X-Request-Id": job.public_id})
    events = new_stream(front, job)
    builder = ResponseBuilder(job, response, events, tokenizer)
    job.sink = builder
    front.launch(job, [prepared.prompt], prepared.params, plan=prepared.plan)

    def last() -> bytes:
        end = builder.last()
        asked.keep(response)
        return end

    return await stream_job(front, request, job, events, first=builder.first, last=last, failure=builder.failed)


async def _in_background(
    front: Front, request: web.Request, job: Job, response: Response, asked: Asked, prepared: Prepared
) -> web.StreamResponse:
    """It runs on whatever its client does; the response is read, followed or cancelled by its id."""
    response.status, response.background = "queued", True
    log = EventLog() if asked.body.stream else None
    tokenizer = front.loaded.tokenizer if wants_logprobs(asked.body) else None
    builder = ResponseBuilder(job, response, log, tokenizer)
    job.sink = builder
    front.launch(job, [prepared.prompt], prepared.params, plan=prepared.plan)
    builder.enqueue()
    running = Running(job, builder)
    items = stored_items(asked.body.input)
    stored = Stored(asked.owner, b"", items, [], len(encode(items)), True, running, log)
    front.responses.put(response.id, stored)

    def end(_: object) -> None:
        last = builder.last() if job.error is None else builder.failed(job.error)
        if log is not None:
            log.send(last)
            log.close()
        if response.id in front.responses:
            asked.keep(response, log)
        front.release(job)

    job.done.add_done_callback(end)
    if log is not None:
        return await follow(request, log, 0, front.options.ping_s)
    return json_response(response, headers={"X-Request-Id": job.public_id})


class Running:
    """One in the background, for the store."""

    def __init__(self, job: Job, builder: ResponseBuilder) -> None:
        self._job = job
        self._builder = builder

    def now(self) -> bytes:
        if self._job.started.done():
            self._builder.begin()
        return encode(self._builder.response)

    def cancel(self) -> None:
        self._builder.response.status = "cancelled"
        abort_job(self._job)


async def get(request: web.Request) -> web.StreamResponse:
    """With `stream=true` the events of one in the background, from after `starting_after` on."""
    front = front_of(request)
    stored = front.responses.get(request.match_info["id"], request[CALLER].owner)
    if request.query.get("stream", "").lower() in ("true", "1"):
        if stored.log is None:
            raise InvalidRequest("only a background response made with stream: true can be followed", param="stream")
        after = request.query.get("starting_after", "-1")
        if not re.fullmatch(r"-1|[0-9]{1,9}", after):
            raise InvalidRequest("starting_after must be a sequence number", param="starting_after")
        return await follow(request, stored.log, int(after) + 1, front.options.ping_s)
    body = stored.body if stored.running is None else stored.running.now()
    return web.Response(body=body, content_type="application/json")


async def delete(request: web.Request) -> web.StreamResponse:
    name, store = request.match_info["id"], front_of(request).responses
    stored = store.delete(name, request[CALLER].owner)
    if stored.running is not None:
        stored.running.cancel()
    return json_response(DeletedResponse(name))


async def input_items(request: web.Request) -> web.StreamResponse:
    items = front_of(request).responses.get(request.match_info["id"], request[CALLER].owner).input_items
    return json_response(page_of(items, request.query))


async def cancel(request: web.Request) -> web.StreamResponse:
    """Ends one that still runs; its stream closes with what there is. One that ended in the background is told."""
    front, name, owner = front_of(request), request.match_info["id"], request[CALLER].owner
    job = front.jobs.get(name)
    if job is not None and job.owner == owner and isinstance(job.sink, ResponseBuilder):
        abort_job(job)
        if job.sink.response.background:
            job.sink.response.status = "cancelled"
        return json_response({**msgspec.to_builtins(job.sink.response), "status": "cancelled"})
    stored = front.responses.get(name, owner)
    if not stored.background:
        raise InvalidRequest("the response has already ended", param="response_id", code="response_not_cancellable")
    body = stored.body if stored.running is None else stored.running.now()
    return web.Response(body=body, content_type="application/json")
