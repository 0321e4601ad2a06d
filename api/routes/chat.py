"""`POST /v1/chat/completions`."""

from __future__ import annotations

from aiohttp import web

from tsd.api.body import read_json
from tsd.api.front import Front, front_of
from tsd.api.job import Collector, Job
from tsd.api.logprobs import chat_logprobs
from tsd.api.prepare import echoed, prepare_chat
from tsd.api.respond import json_response, new_stream, stream_job, wait_for
from tsd.api.sse import error_event
from tsd.api.wire.chat import (
    AnswerFunction,
    AnswerMessage,
    AnswerToolCall,
    ChatCompletion,
    ChatRequest,
    Choice,
    ChoiceLogprobs,
)
from tsd.api.wire.chat_stream import ChatStream, usage_of


async def chat_completions(request: web.Request) -> web.StreamResponse:
    front = front_of(request)
    front.check_admits()
    body = await read_json(request, ChatRequest, front.options.limits)
    model, params, prompt, plan = await prepare_chat(front, body)
    job = front.new_job("chatcmpl-", request)
    if not body.stream:
        front.launch(job, [prompt], params, plan=plan)
        await wait_for(front, job)
        return json_response(_completion(front, job, body, model), headers={"X-Request-Id": job.public_id})
    events = new_stream(front, job)
    options = body.stream_options
    sink = ChatStream(
        events,
        job,
        model,
        front.loaded.tokenizer,
        params.n,
        include_usage=bool(options and options.include_usage),
        continuous_usage=bool(options and options.continuous_usage_stats),
        token_ids=bool(body.return_token_ids),
        logprobs=bool(body.logprobs),
        include_reasoning=body.include_reasoning is not False,
        opening=echoed(body),
    )
    job.sink = sink
    front.launch(job, [prompt], params, plan=plan)
    return await stream_job(front, request, job, events, last=sink.last, failure=error_event)


def _completion(front: Front, job: Job, body: ChatRequest, model: str) -> ChatCompletion:
    assert isinstance(job.sink, Collector)
    tokenizer = front.loaded.tokenizer
    opening = echoed(body)
    choices = []
    for sequence in job.sequences:
        assert sequence.ending is not None
        got = job.sink.of(sequence.index)
        message = AnswerMessage(content=opening + got.text)
        if got.reasoning and body.include_reasoning is not False:
            message.reasoning = message.reasoning_content = "".join(got.reasoning)
        if got.calls:
            message.tool_calls = [
                AnswerToolCall(i, AnswerFunction(name, arguments)) for i, name, arguments in got.calls
            ]
            message.content = message.content or None
        logprobs = None
        if body.logprobs:
            logprobs = ChoiceLogprobs(chat_logprobs(tokenizer, got.tokens, got.logprobs))
        choice = Choice(sequence.index, message, logprobs, sequence.ending.reason, sequence.ending.stop)
        if body.return_token_ids:
            choice.token_ids = got.tokens
        choices.append(choice)
    answer = ChatCompletion(job.public_id, job.created, model, choices, usage_of(job))
    if body.return_token_ids:
        answer.prompt_token_ids = job.sequences[0].prompt.tolist()
    return answer
