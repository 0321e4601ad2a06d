"""The engine's own routes: `/generate`, `/abort`, `/tokenize`, `/detokenize`."""

from __future__ import annotations

from typing import Any

import msgspec

from tsd.api.wire.chat import ChatMessage, Tool


class NativeSampling(msgspec.Struct, kw_only=True):
    max_new_tokens: int | None = None
    max_tokens: int | None = None
    min_new_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    sampling_seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    logit_bias: dict[str, float] | None = None
    n: int | None = None
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None


class GenerateRequest(msgspec.Struct, kw_only=True):
    input_ids: list[int] | None = None
    text: str | None = None
    sampling_params: NativeSampling | None = None
    stream: bool | None = None
    return_logprob: bool | None = None
    top_logprobs_num: int | None = None
    priority: int | None = None
    cache_salt: str | None = None
    rid: str | None = None


class MetaInfo(msgspec.Struct):
    id: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    finish_reason: dict[str, Any] | None
    output_token_logprobs: list[Any] | msgspec.UnsetType = msgspec.UNSET
    output_top_logprobs: list[Any] | msgspec.UnsetType = msgspec.UNSET


class Generated(msgspec.Struct):
    text: str
    output_ids: list[int]
    meta_info: MetaInfo
    index: int = 0


class AbortRequest(msgspec.Struct, kw_only=True):
    request_id: str | None = None
    rid: str | None = None


class TokenizeRequest(msgspec.Struct, kw_only=True):
    model: str | None = None
    prompt: str | None = None
    text: str | None = None
    messages: list[ChatMessage] | None = None
    tools: list[Tool] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None


class Tokenized(msgspec.Struct):
    tokens: list[int]
    count: int
    max_model_len: int
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    tokens: list[int]
    model: str | None = None


class Detokenized(msgspec.Struct):
    prompt: str
