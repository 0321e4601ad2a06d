"""Answers, event by event, against the OpenAPI documents that OpenAI and Anthropic publish."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support.byte_model import model_that_says
from support.front_server import Server, run_async
from support.suite_data import published_openapi

SAID = (
    "<think>\nhm\n</think>\n\nLet me look.\n"
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris ☀"}}\n</tool_call>'
)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "Weather", "parameters": SCHEMA}
CHAT: dict[str, Any] = {
    "model": "test",
    "messages": [{"role": "user", "content": "Weather?"}],
    "tools": [{"type": "function", "function": FUNCTION}],
}
RESPONSES: dict[str, Any] = {
    "model": "test",
    "input": "Weather?",
    "tools": [{"type": "function", "strict": False, **FUNCTION}],
}
MESSAGES: dict[str, Any] = {
    "model": "test",
    "max_tokens": 2000,
    "messages": [{"role": "user", "content": "Weather?"}],
    "tools": [{"name": "get_weather", "description": "Weather", "input_schema": SCHEMA}],
}
LOGPROBS: dict[str, Any] = {
    "instructions": "x",
    "metadata": {},
    "top_logprobs": 2,
    "include": ["message.output_text.logprobs"],
}
Check = Callable[[str, Any], None]


def checker(vendor: str) -> Check:
    """Raises AssertionError for a value that is not what the vendor's schema of that name says."""
    document = published_openapi(vendor)

    def check(name: str, value: Any) -> None:
        validator = jsonschema.Draft202012Validator(
            {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
        )
        error = jsonschema.exceptions.best_match(validator.iter_errors(value))
        assert error is None, (name, error.message, list(error.absolute_path), value)

    return check


def without_nulls(event: Any) -> Any:
    """Chunks have nulls that the document's text and examples have, and its schema lacks."""
    event = {key: value for key, value in event.items() if not (key == "usage" and value is None)}
    for choice in event["choices"]:
        if choice["logprobs"] is None and "delta" in choice:
            del choice["logprobs"]
        elif "delta" in choice:
            choice["logprobs"]["refusal"] = []
        choice["finish_reason"] = choice["finish_reason"] or "stop"
    return event


def serving(folder: Path) -> Any:
    return model_that_says(folder, SAID, tokens_per_step=20, reasoning_parser="qwen3", tool_call_parser="hermes")


async def get(server: Server, path: str) -> Any:
    status, answer = await server.get(path)
    assert status == 200, answer
    return answer


async def post(server: Server, path: str, body: Any) -> Any:
    status, answer = await server.post(path, body)
    assert status == 200, answer
    return answer


def test_chat_and_completions(tmp_path: Path) -> None:
    check = checker("openai")

    async def test() -> None:
        async with serving(tmp_path) as server:
            for fields in ({}, {"n": 2, "logprobs": True, "top_logprobs": 2}, {"max_tokens": 3}):
                body = {**CHAT, **fields}
                check("CreateChatCompletionResponse", await post(server, "/v1/chat/completions", body))
                stream = {**body, "stream": True, "stream_options": {"include_usage": True}}
                for event in (await server.events("/v1/chat/completions", stream))[:-1]:
                    check("CreateChatCompletionStreamResponse", without_nulls(event))
            body = {"model": "test", "prompt": "x", "logprobs": 2}
            check("CreateCompletionResponse", await post(server, "/v1/completions", body))
            for event in (await server.events("/v1/completions", {**body, "stream": True}))[:-1]:
                check("CreateCompletionResponse", without_nulls(event))
            check("ListModelsResponse", await get(server, "/v1/models"))
            check("Model", await get(server, "/v1/models/test"))
            status, error = await server.post("/v1/chat/completions", {**CHAT, "n": 0})
            assert status == 400
            check("ErrorResponse", error)

    run_async(test)


def test_responses_and_conversations(tmp_path: Path) -> None:
    check = checker("openai")

    async def test() -> None:
        async with serving(tmp_path) as server:
            for fields in ({}, {"max_output_tokens": 3}, {"background": True}, LOGPROBS):
                body = {**RESPONSES, **fields}
                made = await post(server, "/v1/responses", body)
                check("Response", made)
                for event in await server.events("/v1/responses", {**body, "stream": True}):
                    check("ResponseStreamEvent", event)
                check("Response", await get(server, f"/v1/responses/{made['id']}"))
                check("ResponseItemList", await get(server, f"/v1/responses/{made['id']}/input_items"))
            items = [{"type": "message", "role": "user", "content": "x"}]
            kept = await post(server, "/v1/conversations", {"items": items, "metadata": {"a": "b"}})
            check("ConversationResource", kept)
            check("Response", await post(server, "/v1/responses", {**RESPONSES, "conversation": kept["id"]}))
            listed = await get(server, f"/v1/conversations/{kept['id']}/items")
            assert len(listed["data"]) == 5
            check("ConversationItemList", listed)

    run_async(test)


def test_messages(tmp_path: Path) -> None:
    check = checker("anthropic")

    async def test() -> None:
        async with serving(tmp_path) as server:
            for fields in ({}, {"max_tokens": 3}, {"stop_sequences": ["look"]}):
                body = {**MESSAGES, **fields}
                check("Message", await post(server, "/v1/messages", body))
                for event in await server.events("/v1/messages", {**body, "stream": True}):
                    if event["type"] != "ping":
                        check("MessageStreamEvent", event)
            counted = {key: value for key, value in MESSAGES.items() if key != "max_tokens"}
            check("CountMessageTokensResponse", await post(server, "/v1/messages/count_tokens", counted))
            status, error = await server.post("/v1/messages", {**MESSAGES, "max_tokens": 0})
            assert status == 400
            check("ErrorResponse", error)

    run_async(test)


@pytest.mark.parametrize("vendor", ["openai", "anthropic"])
def test_the_check_can_fail(vendor: str) -> None:
    name = {"openai": "Response", "anthropic": "Message"}[vendor]
    with pytest.raises(AssertionError):
        checker(vendor)(name, {"id": "x"})
