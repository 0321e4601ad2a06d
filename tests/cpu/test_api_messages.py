"""Anthropic's dialect, read by Anthropic's own client; a request as Claude Code sends it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anthropic
from support.byte_model import CHATML, model_that_says
from support.front_server import run_async

ROUTE = "/v1/messages"
TOOLS: list[Any] = [
    {
        "name": "get_weather",
        "description": "Weather",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        "cache_control": {"type": "ephemeral"},
    },
    {"type": "web_search_20250305", "name": "web_search", "max_uses": 3},
]
ASK: dict[str, Any] = {"model": "test", "max_tokens": 2000, "messages": [{"role": "user", "content": "Weather?"}]}
SAID = (
    "<think>\nhm\n</think>\n\nLet me look.\n"
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris ☀"}}\n</tool_call>'
)

CLAUDE_CODE: dict[str, Any] = {
    "model": "test",
    "max_tokens": 4096,
    "stream": True,
    "temperature": 1,
    "metadata": {"user_id": "user_1_account__session_2"},
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.0; cc_entrypoint=cli; cch=1234;"},
        {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
    ],
    "thinking": {"type": "enabled", "budget_tokens": 3000},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "tools": [*TOOLS, {"name": "now", "input_schema": {"type": "object"}, "eager_input_streaming": True}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I think", "signature": "abc"},
                {"type": "text", "text": "Looking."},
                {"type": "tool_use", "id": "toolu_1", "name": "now", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "noon"}]},
                {"type": "text", "text": "go on"},
            ],
        },
    ],
}


def client_of(url: str) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0)


def test_client_whole_and_streamed(tmp_path: Path) -> None:
    async def test() -> None:
        async with model_that_says(tmp_path, SAID, reasoning_parser="qwen3") as server, client_of(server.url) as client:
            message = await client.messages.create(**ASK, tools=TOOLS)
            assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
            assert message.stop_reason == "tool_use"
            assert message.usage.cache_read_input_tokens == 3
            prompt = len(memoryview(server.engine.seen[-1].prompt).cast("i"))
            assert message.usage.input_tokens == prompt - 3
            async with client.messages.stream(**ASK, tools=TOOLS) as stream:
                types = [event.type async for event in stream]
                final = await stream.get_final_message()
            assert types[0] == "message_start" and types[-1] == "message_stop"
            assert types.count("content_block_start") == types.count("content_block_stop") == 3
            for one, other in zip(message.content, final.content, strict=True):
                mine, theirs = one.model_dump(exclude={"id"}), other.model_dump(exclude={"id"})
                assert mine == {key: theirs[key] for key in mine}
            assert final.stop_reason == "tool_use"
            assert final.usage.output_tokens == message.usage.output_tokens
            count = await client.messages.count_tokens(model="test", messages=ASK["messages"], tools=TOOLS)
            assert count.input_tokens == prompt

    run_async(test, debug=True)


def test_claude_code_request(tmp_path: Path) -> None:
    async def test() -> None:
        async with model_that_says(tmp_path, "Done.") as server:
            headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219,future-2030-01-01"}
            async with server.session.post(f"{ROUTE}?beta=true", json=CLAUDE_CODE, headers=headers) as response:
                assert response.status == 200, await response.text()
                text = await response.text()
            assert "event: message_stop" in text and '"text":"D"' in text
            ids = memoryview(server.engine.seen[-1].prompt).cast("i").tolist()
            prompt = bytes(token for token in ids if token < 256).decode()
            assert "billing" not in prompt and "You are an agent.\n\nBe brief." in prompt
            assert prompt.index("noon") < prompt.index("go on")
            assert "web_search" not in prompt and "get_weather" in prompt

    run_async(test, debug=True)


def test_stop_reasons(tmp_path: Path) -> None:
    async def test() -> None:
        async with model_that_says(tmp_path, "one two three") as server, client_of(server.url) as client:
            stopped = await client.messages.create(**ASK, stop_sequences=["two"])
            assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "two")
            ended = await client.messages.create(**ASK)
            assert (ended.stop_reason, ended.stop_sequence) == ("end_turn", None)
            cut = await client.messages.create(**{**ASK, "max_tokens": 3})
            assert cut.stop_reason == "max_tokens" and cut.content[0].text == "one"  # type: ignore[union-attr]

    run_async(test, debug=True)


def test_errors_are_in_the_dialect(tmp_path: Path) -> None:
    async def test() -> None:
        async with model_that_says(tmp_path, "ok", options_keys=("k",)) as server:
            status, answer = await server.post(ROUTE, ASK)
            assert status == 401 and answer["error"]["type"] == "authentication_error" and answer["type"] == "error"
            headers = {"x-api-key": "k"}
            for body, status in (
                ({}, 400),
                ({**ASK, "max_tokens": 0}, 400),
                ({**ASK, "messages": []}, 400),
                ({**ASK, "model": "other"}, 404),
                ({**ASK, "messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, 400),
                ({**ASK, "tools": TOOLS, "tool_choice": {"type": "tool", "name": "nope"}}, 400),
                ({**ASK, "tools": TOOLS, "tool_choice": {"type": "perhaps"}}, 400),
                ({**ASK, "messages": [{"role": "user", "content": "5" * 9000}]}, 400),
            ):
                got, answer = await server.post(ROUTE, body, headers=headers)
                assert got == status, (body, answer)
                assert answer["type"] == "error" and set(answer["error"]) == {"type", "message"}

    run_async(test, debug=True)


def test_thinking_can_be_switched(tmp_path: Path) -> None:
    template = CHATML.replace("assistant\n", "assistant\n{% if enable_thinking is false %}<think></think>{% endif %}")

    async def test() -> None:
        async with model_that_says(tmp_path, "ok", template) as server:
            for kind, inside in (("enabled", False), ("disabled", True)):
                await server.post(ROUTE, {**ASK, "thinking": {"type": kind, "budget_tokens": 1024}})
                ids = memoryview(server.engine.seen[-1].prompt).cast("i").tolist()
                assert (260 in ids) == inside

    run_async(test, debug=True)
