"""The engine's own routes: `/generate`, `/abort`, `/tokenize`, `/detokenize`."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from tsd.api.auth import CALLER
from tsd.api.body import read_json
from tsd.api.conversation import size_of, to_template, tools_for_template
from tsd.api.errors import InvalidRequest, NotFound
from tsd.api.front import Front, TextPlan, front_of
from tsd.api.job import Collected, Collector, Job
from tsd.api.logprobs import finite
from tsd.api.output import Delta, Ending
from tsd.api.params import Params, packed_ids, resolve
from tsd.api.respond import json_response, new_stream, stream_job, wait_for
from tsd.api.sequence import Sequence
from tsd.api.sse import DONE, error_event, event
from tsd.api.streaming import EventStream
from tsd.api.structured import output_grammar
from tsd.api.text.tokenizer import Tokenizer
from tsd.api.wire.native import (
    AbortRequest,
    Detokenized,
    DetokenizeRequest,
    Generated,
    GenerateRequest,
    MetaInfo,
    NativeSampling,
    Tokenized,
    TokenizeRequest,
)
from tsd.api.wire.sampling import SamplingFields
from tsd.engine.protocol import Grammar

DEFAULT_MAX_TOKENS = 128


async def generate(request: web.Request) -> web.StreamResponse:
    front = front_of(request)
    front.check_admits()
    body = await read_json(request, GenerateRequest, front.options.limits)
    params = _params(front, body)
    if (body.input_ids is None) == (body.text is None):
        raise InvalidRequest("give input_ids or text", param="input_ids")
    if body.input_ids is not None:
        ids, size = body.input_ids, front.facts.vocab_size
        prompt = await front.off_loop(len(ids), lambda: packed_ids("input_ids", ids, size))
    else:
        assert body.text is not None
        prompt = await front.encode(body.text, name="text")
    plan = TextPlan(grammar=await _grammar(front, body))
    job = front.new_job("gen-", request)
    if not body.stream:
        front.launch(job, [prompt], params, continues=True, plan=plan)
        await wait_for(front, job)
        assert isinstance(job.sink, Collector)
        found = [_generated(s, job.sink.of(s.index), body) for s in job.sequences]
        return json_response(found[0] if params.n == 1 else found, headers={"X-Request-Id": job.public_id})
    events = new_stream(front, job)
    job.sink = _GenerateStream(events, front.loaded.tokenizer, body)
    front.launch(job, [prompt], params, continues=True, plan=plan)
    return await stream_job(front, request, job, events, last=lambda: DONE, failure=error_event)


class _GenerateStream:
    """Each event holds the step's text and ids, not the sum of them."""

    def __init__(self, events: EventStream, tokenizer: Tokenizer, body: GenerateRequest) -> None:
        self._events = events
        self._body = body

    def delta(self, sequence: Sequence, delta: Delta) -> None:
        if delta.tokens:
            got = Collected()
            got.add(delta)
            self._events.send(event(_generated(sequence, got, self._body)))

    def ended(self, sequence: Sequence, ending: Ending) -> None:
        self._events.send(event(_generated(sequence, Collected(), self._body)))


def _generated(sequence: Sequence, got: Collected, body: GenerateRequest) -> Generated:
    ending = sequence.ending
    reason: dict[str, Any] | None = None
    if ending is not None:
        reason = {"type": ending.reason} if ending.stop is None else {"type": ending.reason, "matched": ending.stop}
    meta = MetaInfo(sequence.job.public_id, len(sequence.prompt), sequence.count, sequence.cached_tokens, reason)
    if body.return_logprob:
        meta.output_token_logprobs = [
            [finite(entry.logprob), token] for token, entry in zip(got.tokens, got.logprobs, strict=True)
        ]
        meta.output_top_logprobs = [
            [[finite(value), token] for token, value in zip(entry.top_ids, entry.top_logprobs, strict=True)]
            for entry in got.logprobs
        ]
    return Generated(got.text, got.tokens, meta, sequence.index)


async def _grammar(front: Front, body: GenerateRequest) -> Grammar | None:
    given = body.sampling_params or NativeSampling()
    fields = SamplingFields(guided_json=given.json_schema, guided_regex=given.regex, guided_grammar=given.ebnf)
    grammar = output_grammar(fields, None, front.options.limits)
    if grammar is not None:
        await front.check_grammar(grammar)
    return grammar


def _params(front: Front, body: GenerateRequest) -> Params:
    given = body.sampling_params or NativeSampling()
    fields = SamplingFields(
        n=given.n,
        seed=given.seed if given.seed is not None else given.sampling_seed,
        stop=given.stop,
        stop_token_ids=given.stop_token_ids,
        min_tokens=given.min_new_tokens,
        temperature=given.temperature,
        top_p=given.top_p,
        top_k=given.top_k,
        min_p=given.min_p,
        frequency_penalty=given.frequency_penalty,
        presence_penalty=given.presence_penalty,
        repetition_penalty=given.repetition_penalty,
        logit_bias=given.logit_bias,
        ignore_eos=given.ignore_eos,
        priority=body.priority,
        cache_salt=body.cache_salt,
    )
    limit = given.max_new_tokens if given.max_new_tokens is not None else given.max_tokens
    top = body.top_logprobs_num or 0
    if not 0 <= top <= front.options.limits.top_logprobs:
        raise InvalidRequest("top_logprobs_num is out of range", param="top_logprobs_num", code="out_of_range")
    return resolve(
        fields,
        front.facts,
        front.options.limits,
        logprobs=top if body.return_logprob else -1,
        max_tokens=DEFAULT_MAX_TOKENS if limit is None else limit,
    )


async def abort(request: web.Request) -> web.StreamResponse:
    """By the exact id that the response carries, of the caller's own requests (any, with the admin key)."""
    front = front_of(request)
    body = await read_json(request, AbortRequest, front.options.limits)
    name = body.request_id or body.rid
    if not name:
        raise InvalidRequest("request_id is missing", param="request_id", code="missing")
    if (answer := await front.elsewhere(request, name)) is not None:
        return answer
    job = front.jobs.get(name)
    caller = request[CALLER]
    if job is None or not (caller.is_admin or job.owner == caller.owner):
        raise NotFound("no such request is running", param="request_id", code="request_not_found")
    abort_job(job)
    return json_response({"aborted": name})


def abort_job(job: Job) -> None:
    """Asks the engines to end it: its client gets the terminal event with reason `abort`."""
    for sequence in job.sequences:
        if sequence.ending is None and sequence.engine is not None:
            sequence.engine.abort(sequence)


async def tokenize(request: web.Request) -> web.StreamResponse:
    front = front_of(request)
    body = await read_json(request, TokenizeRequest, front.options.limits)
    front.check_model(body.model)
    text, tokenizer = front.loaded, front.loaded.tokenizer
    source = body.prompt if body.prompt is not None else body.text
    if body.messages is not None:
        messages = to_template(body.messages, front.options.limits)
        tools = tools_for_template(body.tools)
        generation = body.add_generation_prompt is not False
        ids = await front.render(
            size_of(body.messages),
            lambda limit: text.chat.encode(messages, tools, add_generation_prompt=generation, limit=limit),
        )
    elif source is not None:
        ids = await front.encode(source, body.add_special_tokens is not False)
    else:
        raise InvalidRequest("give prompt or messages", param="prompt", code="missing")
    names = None
    if body.return_token_strs:
        names = await front.off_loop(
            len(ids), lambda: [tokenizer.token_bytes(token).decode("utf-8", "replace") for token in ids]
        )
    return json_response(Tokenized(ids.tolist(), len(ids), front.facts.max_model_len, names))


async def detokenize(request: web.Request) -> web.StreamResponse:
    front = front_of(request)
    body = await read_json(request, DetokenizeRequest, front.options.limits)
    front.check_model(body.model)
    ids, size = body.tokens, front.facts.vocab_size
    packed = await front.off_loop(len(ids), lambda: packed_ids("tokens", ids, size))
    return json_response(Detokenized(await front.decode(packed)))
