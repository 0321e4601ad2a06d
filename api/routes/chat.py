"""`POST /v1/chat/completions`."""

from __future__ import annotations

from aiohttp import web

from tsd.api.body import read_json
from tsd.api.conversation import size_of, to_template
from tsd.api.errors import InvalidRequest
from tsd.api.front import Front, front_of
from tsd.api.job import Collector, Job
from tsd.api.logprobs import chat_logprobs
from tsd.api.params import Params, resolve, unsupported
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
    model = front.check_model(body.model)
    params = chat_params(front, body)
    limits = front.options.limits
    text = front.loaded
    messages = to_template(body.messages, limits, knows_developer="developer" in text.chat.template.source)
    keywords = template_keywords(front, body)
    generation = body.add_generation_prompt is not False
    prompt = await front.render(
        size_of(body.messages),
        lambda limit: text.chat.encode(
            messages, None, add_generation_prompt=generation, keywords=keywords, limit=limit
        ),
    )
    job = front.new_job("chatcmpl-", request)
    if not body.stream:
        front.launch(job, [prompt], params)
        await wait_for(front, job)
        return json_response(_completion(front, job, body, params, model), headers={"X-Request-Id": job.public_id})
    events = new_stream(front, job)
    options = body.stream_options
    sink = ChatStream(
        events,
        job,
        model,
        text.tokenizer,
        params.n,
        include_usage=bool(options and options.include_usage),
        continuous_usage=bool(options and options.continuous_usage_stats),
        token_ids=bool(body.return_token_ids),
        logprobs=bool(body.logprobs),
        include_reasoning=body.include_reasoning is not False,
    )
    job.sink = sink
    front.launch(job, [prompt], params)
    return await stream_job(front, request, job, events, last=sink.last, failure=error_event)


def chat_params(front: Front, body: ChatRequest) -> Params:
    _refuse_unsupported(body)
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs: true", param="top_logprobs")
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options needs stream: true", param="stream_options")
    top = body.top_logprobs or 0
    if not 0 <= top <= front.options.limits.top_logprobs:
        raise InvalidRequest(
            f"top_logprobs must be at least 0 and at most {front.options.limits.top_logprobs}",
            param="top_logprobs",
            code="out_of_range",
        )
    limit = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    return resolve(body, front.facts, front.options.limits, logprobs=top if body.logprobs else -1, max_tokens=limit)


def _refuse_unsupported(body: ChatRequest) -> None:
    if body.tools:
        raise unsupported("tools")
    if body.response_format is not None and body.response_format.type != "text":
        raise unsupported("response_format")
    for name in ("functions", "function_call", "audio", "prediction", "documents", "chat_template"):
        if getattr(body, name) not in (None, []):
            raise unsupported(name)
    if body.web_search_options is not None:
        raise unsupported("web_search_options")
    if body.modalities not in (None, [], ["text"]):
        raise unsupported("modalities", "other than text are not supported")
    if body.continue_final_message:
        raise unsupported("continue_final_message")
    if body.echo:
        raise unsupported("echo", "is not supported here; /v1/completions has it")


def template_keywords(front: Front, body: ChatRequest) -> dict[str, object]:
    """Raises InvalidRequest for a keyword that is not on the allow-list."""
    keywords: dict[str, object] = {}
    if body.reasoning_effort is not None:
        keywords["reasoning_effort"] = body.reasoning_effort
    for name, value in (body.chat_template_kwargs or {}).items():
        if name not in front.options.chat_template_keys:
            raise InvalidRequest(
                f"chat_template_kwargs.{name[:40]} is not allowed", param="chat_template_kwargs", code="unsupported"
            )
        if not isinstance(value, (str, bool, int, float, type(None))):
            raise InvalidRequest(f"chat_template_kwargs.{name} must be a plain value", param="chat_template_kwargs")
        keywords[name] = value
    return keywords


def _completion(front: Front, job: Job, body: ChatRequest, params: Params, model: str) -> ChatCompletion:
    assert isinstance(job.sink, Collector)
    tokenizer = front.loaded.tokenizer
    choices = []
    for sequence in job.sequences:
        assert sequence.ending is not None
        got = job.sink.of(sequence.index)
        message = AnswerMessage(content=got.text)
        if sequence.splitter is not None and body.include_reasoning is not False:
            message.reasoning = message.reasoning_content = "".join(got.reasoning) or None
        if got.calls:
            message.tool_calls = [
                AnswerToolCall(i, AnswerFunction(name, arguments)) for i, name, arguments in got.calls
            ]
            message.content = got.text or None
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
