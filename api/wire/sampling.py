"""The request fields that the OpenAI dialects share."""

from __future__ import annotations

from typing import Any

import msgspec

VERSION = "0.1.0"
FINGERPRINT = f"tsd-{VERSION}"


class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplingFields(msgspec.Struct, kw_only=True):
    """Every field optional; null is unset. Ranges are `params.resolve`'s to check."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    ignore_eos: bool | None = None
    priority: int | None = None
    user: str | None = None
    cache_salt: str | None = None
    return_token_ids: bool | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None

    # Structured output beyond response_format.
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_grammar: str | None = None
    guided_choice: list[str] | None = None
    structured_outputs: dict[str, Any] | None = None

    # Known, and refused unless they say what is done anyway.
    best_of: int | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[int] | None = None
    truncate_prompt_tokens: int | None = None
    logits_processors: list[Any] | None = None
    prompt_embeds: Any = None
    prompt_logprobs: int | None = None


class PromptTokensDetails(msgspec.Struct):
    cached_tokens: int = 0


class CompletionTokensDetails(msgspec.Struct):
    reasoning_tokens: int = 0


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails

    @staticmethod
    def of(prompt: int, completion: int, cached: int, reasoning: int = 0) -> Usage:
        return Usage(
            prompt, completion, prompt + completion, PromptTokensDetails(cached), CompletionTokensDetails(reasoning)
        )


class ErrorDetail(msgspec.Struct):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct):
    error: ErrorDetail


class ModelCard(msgspec.Struct):
    id: str
    created: int
    max_model_len: int | None = None
    root: str | None = None
    object: str = "model"
    owned_by: str = "tsd"


class ModelList(msgspec.Struct):
    data: list[ModelCard]
    object: str = "list"
