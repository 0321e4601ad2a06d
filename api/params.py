"""Turns sampling fields into what an engine is asked for. Every range is checked here, before anything is sent.

A parameter that is known and cannot be honoured raises `InvalidRequest` with code `unsupported`.
"""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple

import msgspec

from tsd.api.errors import ContextLength, InvalidRequest
from tsd.api.limits import Limits, check_count, check_length, check_range
from tsd.api.text.tokenizer import PACKED_AT_A_TIME
from tsd.api.wire.sampling import SamplingFields
from tsd.engine.protocol import SamplingParams

SEED_END = 2**63
_INT32 = 2**31 - 1
GREEDY_BELOW = 1e-5


class ModelFacts(NamedTuple):
    """What validation must know of the engines."""

    vocab_size: int
    max_model_len: int
    eos_ids: tuple[int, ...]


class Params(NamedTuple):
    sampling: SamplingParams
    n: int
    max_tokens: int | None
    """None: what the context leaves."""
    min_tokens: int
    stops: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    include_stop: bool
    skip_special: bool
    priority: int
    cache_salt: str | None
    user: str

    def seeded(self, index: int) -> SamplingParams:
        """Choice `index`'s own sampling: seeds count up from the request's."""
        if self.sampling.seed is None or index == 0:
            return self.sampling
        return msgspec.structs.replace(self.sampling, seed=(self.sampling.seed + index) % SEED_END)

    def budget(self, prompt: int, facts: ModelFacts, name: str = "prompt") -> int:
        """Tokens that may be generated after `prompt` tokens. Raises ContextLength when there is no room."""
        room = facts.max_model_len - prompt
        if room < 1:
            raise ContextLength(
                f"the prompt has {prompt} tokens; the context of {facts.max_model_len} must hold it and one more",
                param=name,
            )
        return room if self.max_tokens is None else min(self.max_tokens, room)


def unsupported(name: str, why: str = "is not supported") -> InvalidRequest:
    return InvalidRequest(f"{name} {why}", param=name, code="unsupported")


def resolve(
    fields: SamplingFields,
    facts: ModelFacts,
    limits: Limits,
    *,
    logprobs: int = -1,
    max_tokens: int | None = None,
    zero_tokens: bool = False,
) -> Params:
    """`max_tokens` is the dialect's value (or default); 0 passes only with `zero_tokens`."""
    _refuse_unsupported(fields)
    n = 1 if fields.n is None else fields.n
    check_range("n", n, 1, limits.n, integer=True)
    check_range("seed", fields.seed, 0, SEED_END - 1, integer=True)
    check_range("max_tokens", max_tokens, 0 if zero_tokens else 1, _INT32, integer=True)
    check_range("temperature", fields.temperature, 0, 100)
    check_range("top_p", fields.top_p, 0, 1, low_open=True)
    check_range("min_p", fields.min_p, 0, 1)
    check_range("top_k", fields.top_k, -1, _INT32, integer=True)
    check_range("frequency_penalty", fields.frequency_penalty, -2, 2)
    check_range("presence_penalty", fields.presence_penalty, -2, 2)
    check_range("repetition_penalty", fields.repetition_penalty, 0, 10, low_open=True)
    check_range("priority", fields.priority, -_INT32, _INT32, integer=True)
    check_range("logprobs", logprobs, -1, limits.top_logprobs, integer=True)
    check_length("user", fields.user, limits.name_characters)
    check_length("cache_salt", fields.cache_salt, limits.name_characters)
    min_tokens = fields.min_tokens or 0
    check_range("min_tokens", min_tokens, 0, facts.max_model_len if max_tokens is None else max_tokens, integer=True)
    temperature = 1.0 if fields.temperature is None else fields.temperature
    sampling = SamplingParams(
        temperature=0.0 if temperature < GREEDY_BELOW else temperature,
        top_k=max(0, fields.top_k or 0),
        top_p=1.0 if fields.top_p is None else fields.top_p,
        min_p=fields.min_p or 0.0,
        seed=fields.seed,
        frequency_penalty=fields.frequency_penalty or 0.0,
        presence_penalty=fields.presence_penalty or 0.0,
        repetition_penalty=1.0 if fields.repetition_penalty is None else fields.repetition_penalty,
        logit_bias=_logit_bias(fields.logit_bias, facts, limits),
        logprobs=logprobs,
    )
    return Params(
        sampling=sampling,
        n=n,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stops=_stops(fields.stop, limits),
        stop_token_ids=_stop_ids(fields, facts, limits),
        include_stop=bool(fields.include_stop_str_in_output),
        skip_special=fields.skip_special_tokens is not False,
        priority=fields.priority or 0,
        cache_salt=fields.cache_salt,
        user=fields.user or "",
    )


def _refuse_unsupported(fields: SamplingFields) -> None:
    if fields.best_of is not None and fields.best_of != (1 if fields.n is None else fields.n):
        raise unsupported("best_of", "other than n is not supported")
    if fields.use_beam_search:
        raise unsupported("use_beam_search")
    if fields.length_penalty not in (None, 1.0):
        raise unsupported("length_penalty")
    for name in ("bad_words", "allowed_token_ids", "logits_processors", "prompt_embeds", "truncate_prompt_tokens"):
        if getattr(fields, name) not in (None, []):
            raise unsupported(name)
    if fields.prompt_logprobs is not None:
        raise unsupported("prompt_logprobs", "is not supported; /v1/completions gives them with echo and logprobs")


def _stops(stop: str | list[str] | None, limits: Limits) -> tuple[str, ...]:
    stops = [stop] if isinstance(stop, str) else stop or []
    check_count("stop", len(stops), limits.stop_strings)
    for text in stops:
        if not text:
            raise InvalidRequest("stop must not be an empty string", param="stop")
        check_length("stop", text, limits.stop_characters)
    return tuple(stops)


def _stop_ids(fields: SamplingFields, facts: ModelFacts, limits: Limits) -> tuple[int, ...]:
    ids = fields.stop_token_ids or []
    check_count("stop_token_ids", len(ids), limits.stop_token_ids)
    check_ids("stop_token_ids", ids, facts.vocab_size)
    base = () if fields.ignore_eos else facts.eos_ids
    return tuple(dict.fromkeys((*base, *ids)))


def _logit_bias(bias: dict[str, float] | None, facts: ModelFacts, limits: Limits) -> dict[int, float]:
    if not bias:
        return {}
    check_count("logit_bias", len(bias), limits.logit_bias)
    found: dict[int, float] = {}
    for key, value in bias.items():
        token = int(key) if key.isascii() and key.isdecimal() and len(key) < 12 else -1
        if not 0 <= token < facts.vocab_size:
            raise InvalidRequest(
                f"logit_bias: {key[:40]!r} is not a token id below {facts.vocab_size}", param="logit_bias"
            )
        check_range("logit_bias", value, -limits.logit_bias_magnitude, limits.logit_bias_magnitude)
        found[token] = value
    return found


def packed_ids(name: str, ids: list[Any], vocab_size: int) -> array[int]:
    """As int32. Raises InvalidRequest for what is no token id. A part at a time: see `pack`."""
    packed: array[int] = array("i")
    for start in range(0, len(ids), PACKED_AT_A_TIME):
        part = ids[start : start + PACKED_AT_A_TIME]
        if set(map(type, part)) != {int}:
            raise InvalidRequest(f"{name}: token ids must be whole numbers", param=name, code="invalid_type")
        check_ids(name, part, vocab_size)
        packed.fromlist(part)
    return packed


def check_ids(name: str, ids: list[int], vocab_size: int) -> None:
    """Raises InvalidRequest naming the first id that is not in the vocabulary."""
    if ids and (min(ids) < 0 or max(ids) >= vocab_size):
        bad = next(token for token in ids if not 0 <= token < vocab_size)
        raise InvalidRequest(f"{name}: {bad} is not a token id below {vocab_size}", param=name, code="out_of_range")
