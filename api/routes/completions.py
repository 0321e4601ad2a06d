"""`POST /v1/completions`."""

from __future__ import annotations

from array import array
from typing import Any

from aiohttp import web

from tsd.api.body import read_json
from tsd.api.errors import InvalidRequest
from tsd.api.front import Front, TextPlan, front_of
from tsd.api.job import Collector, Job
from tsd.api.limits import Limits, check_count, check_range
from tsd.api.logprobs import CompletionLogprobsBuilder
from tsd.api.params import Params, packed_ids, resolve, unsupported
from tsd.api.respond import json_response, new_stream, stream_job, wait_for
from tsd.api.sse import error_event
from tsd.api.structured import output_grammar
from tsd.api.wire.chat_stream import usage_of
from tsd.api.wire.completion_stream import CompletionStream
from tsd.api.wire.completions import Completion, CompletionChoice, CompletionLogprobs, CompletionRequest

DEFAULT_MAX_TOKENS = 16
MOST_LISTS = 1024
"""Of a prompt's entries, looked at to see how large it is; more are refused anyway."""


async def completions(request: web.Request) -> web.StreamResponse:
    front = front_of(request)
    front.check_admits()
    limits = front.options.limits
    body = await read_json(request, CompletionRequest, limits)
    model = front.check_model(body.model)
    if body.suffix:
        raise unsupported("suffix")
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options needs stream: true", param="stream_options")
    check_range("logprobs", body.logprobs, 0, limits.top_logprobs, integer=True)
    logprobs = -1 if body.logprobs is None else body.logprobs
    limit = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    silent = limit == 0
    """Only the prompt is echoed."""
    params = resolve(body, front.facts, limits, logprobs=logprobs, max_tokens=limit, zero_tokens=bool(body.echo))
    given, vocab_size = body.prompt, front.facts.vocab_size
    sources = await front.off_loop(_size(given), lambda: prompts_of(given, vocab_size, limits))
    if len(sources) * params.n > limits.sequences:
        raise InvalidRequest(f"prompts times n is over {limits.sequences}", param="n", code="too_many")
    tokenizer = front.loaded.tokenizer
    prompts = [
        await front.encode(source, body.add_special_tokens is not False) if isinstance(source, str) else source
        for source in sources
    ]
    echoes = None
    if body.echo:
        echoes = [source if isinstance(source, str) else await front.decode(source) for source in sources]
    grammar = output_grammar(body, body.response_format, limits)
    if grammar is not None:
        await front.check_grammar(grammar)
    plan = TextPlan(grammar=grammar)
    job = front.new_job("cmpl-", request)
    prompt_logprobs = logprobs if body.echo else -1
    if not body.stream:
        front.launch(job, prompts, params, prompt_logprobs=prompt_logprobs, continues=True, plan=plan)
        await wait_for(front, job)
        answer = _completion(front, job, body, params, model, echoes, silent)
        return json_response(answer, headers={"X-Request-Id": job.public_id})
    events = new_stream(front, job)
    options = body.stream_options
    sink = CompletionStream(
        events,
        job,
        model,
        tokenizer,
        include_usage=bool(options and options.include_usage),
        continuous_usage=bool(options and options.continuous_usage_stats),
        token_ids=bool(body.return_token_ids),
        logprobs=logprobs >= 0,
        echoes=echoes,
        silent=silent,
    )
    job.sink = sink
    front.launch(job, prompts, params, prompt_logprobs=prompt_logprobs, continues=True, plan=plan)
    return await stream_job(front, request, job, events, last=sink.last, failure=error_event)


def prompts_of(prompt: str | list[Any] | None, vocab_size: int, limits: Limits) -> list[str | array[int]]:
    """A text, ids, or a list of either. Raises InvalidRequest for anything else."""
    if prompt is None:
        raise InvalidRequest("prompt is missing", param="prompt", code="missing")
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise InvalidRequest("prompt must not be empty", param="prompt", code="empty_prompt")
    if type(prompt[0]) is int:
        return [packed_ids("prompt", prompt, vocab_size)]
    check_count("prompt", len(prompt), limits.prompts)
    found: list[str | array[int]] = []
    for item in prompt:
        if isinstance(item, str):
            found.append(item)
        elif isinstance(item, list) and item:
            found.append(packed_ids("prompt", item, vocab_size))
        else:
            raise InvalidRequest("prompt must be a text, token ids, or a list of either", param="prompt")
    return found


def _size(prompt: str | list[Any] | None) -> int:
    """Ids in a prompt, to choose where they are looked at."""
    if not isinstance(prompt, list):
        return 0
    return len(prompt) + sum(len(item) for item in prompt[:MOST_LISTS] if isinstance(item, list))


def _completion(
    front: Front,
    job: Job,
    body: CompletionRequest,
    params: Params,
    model: str,
    echoes: list[str] | None,
    silent: bool,
) -> Completion:
    assert isinstance(job.sink, Collector)
    choices = []
    for sequence in job.sequences:
        assert sequence.ending is not None
        got = job.sink.of(sequence.index)
        text = "" if silent else got.text
        if echoes is not None:
            text = echoes[sequence.prompt_index] + text
        logprobs = None
        if params.sampling.logprobs >= 0:
            columns = CompletionLogprobsBuilder(front.loaded.tokenizer)
            if echoes is not None:
                columns.add(sequence.prompt, sequence.prompt_logprobs or [None] * len(sequence.prompt))
            if not silent:
                columns.add(got.tokens, got.logprobs)
            logprobs = CompletionLogprobs(*columns.take())
        reason = "length" if silent else sequence.ending.reason
        choice = CompletionChoice(sequence.index, text, logprobs, reason, sequence.ending.stop)
        if body.return_token_ids:
            choice.token_ids = [] if silent else got.tokens
            choice.prompt_token_ids = sequence.prompt.tolist()
        choices.append(choice)
    usage = usage_of(job)
    if silent:
        usage.total_tokens -= usage.completion_tokens
        usage.completion_tokens = 0
    return Completion(job.public_id, job.created, model, choices, usage)
