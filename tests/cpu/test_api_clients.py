"""What agents do with the openai and anthropic clients beyond plain calls: helpers, betas, lists of models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anthropic
import openai
import pydantic
from support.byte_model import CHATML, model_that_says
from support.front_server import run_async

SAID = (
    "<think>\nhm\n</think>\n\nLet me look.\n"
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris ☀"}}\n</tool_call>'
)


class Weather(pydantic.BaseModel):
    city: str
    degrees: float


class City(pydantic.BaseModel):
    city: str


# A template that knows no tools: calls of the history are then written out by the server.
PLAIN = CHATML.split("{% if tools %}")[0] + CHATML.split("{% endif %}", 1)[1]


def openai_of(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def test_parsed_answers(tmp_path: Path) -> None:
    text = '{"city": "Rome", "degrees": 21.5}'

    async def test() -> None:
        async with model_that_says(tmp_path, text) as server, openai_of(server.url) as client:
            asked: Any = [{"role": "user", "content": "Weather?"}]
            chat = await client.chat.completions.parse(model="test", messages=asked, response_format=Weather)
            assert chat.choices[0].message.parsed == Weather(city="Rome", degrees=21.5)
            whole = await client.responses.parse(model="test", input="Weather?", text_format=Weather)
            assert whole.output_parsed == Weather(city="Rome", degrees=21.5)
            async with client.responses.stream(model="test", input="Weather?", text_format=Weather) as stream:
                kinds = [event.type async for event in stream]
                final = await stream.get_final_response()
            assert final.output_parsed == Weather(city="Rome", degrees=21.5)
            assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
            grammar = server.engine.seen[-1].grammar
            assert grammar.kind == "json_schema" and "degrees" in grammar.text

    run_async(test, debug=True)


def test_strict_function_tools(tmp_path: Path) -> None:
    async def test() -> None:
        async with model_that_says(tmp_path, SAID, reasoning_parser="qwen3") as server, openai_of(server.url) as client:
            tool = openai.pydantic_function_tool(City, name="get_weather")
            asked: Any = [{"role": "user", "content": "Weather?"}]
            async with client.chat.completions.stream(model="test", messages=asked, tools=[tool]) as stream:
                kinds = {event.type async for event in stream if event.type.startswith("tool_calls")}
            assert kinds == {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"}
            assert server.engine.seen[-1].grammar.kind == "structural_tag"

    run_async(test, debug=True)


def test_anthropic_betas_and_every_block(tmp_path: Path) -> None:
    cached: Any = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    document: Any = {
        "type": "document",
        "source": {"type": "text", "media_type": "text/plain", "data": "A plain document."},
        "title": "Notes",
        **cached,
    }
    found: Any = {
        "type": "search_result",
        "source": "https://example.com",
        "title": "Found",
        "content": [{"type": "text", "text": "A found text."}],
    }
    messages: Any = [
        {"role": "user", "content": [{"type": "text", "text": "hi", **cached}, document, found]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I think", "signature": "abc"},
                {"type": "redacted_thinking", "data": "xyz"},
                {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
                {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
                {"type": "tool_use", "id": "toolu_1", "name": "now", "input": {}},
                {"type": "tool_use", "id": "toolu_2", "name": "now", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "noon", "is_error": False, **cached},
                {"type": "tool_result", "tool_use_id": "toolu_2", "content": [found, document], "is_error": True},
                {"type": "tool_result", "tool_use_id": "toolu_3"},
            ],
        },
    ]
    tools: Any = [
        {"name": "get_weather", "input_schema": {"type": "object"}, "defer_loading": True, "input_examples": [{}]},
        {"type": "bash_20250124", "name": "bash"},
        {"type": "tool_search_tool_regex_20251119", "name": "tool_search"},
    ]

    async def test() -> None:
        async with (
            model_that_says(tmp_path, SAID, reasoning_parser="qwen3") as server,
            anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0) as client,
        ):
            asked: dict[str, Any] = {"model": "test", "messages": messages, "tools": tools}
            more: dict[str, Any] = {
                "max_tokens": 2000,
                "betas": ["interleaved-thinking-2025-05-14", "fine-grained-tool-streaming-2025-05-14", "new-2031"],
                "thinking": {"type": "adaptive"},
                "context_management": {"edits": []},
                "output_config": {"effort": "high"},
                "extra_body": {"speed": "fast"},
            }
            async with client.beta.messages.stream(**asked, **more) as stream:
                events = [event async for event in stream]
                final = await stream.get_final_message()
            assert [block.type for block in final.content] == ["thinking", "text", "tool_use"]
            deltas = [event.delta.type for event in events if event.type == "content_block_delta"]
            assert set(deltas) == {"thinking_delta", "signature_delta", "text_delta", "input_json_delta"}
            assert final.usage.output_tokens_details.thinking_tokens > 0  # type: ignore[union-attr]
            ids = memoryview(server.engine.seen[-1].prompt).cast("i").tolist()
            prompt = bytes(token for token in ids if token < 256).decode()
            for text in ("A plain document.", "A found text.", "noon"):
                assert text in prompt
            assert prompt.count("A plain document.") == 2 and "bash" not in prompt
            counted = await client.beta.messages.count_tokens(**asked, betas=["token-counting-2024-11-01"])
            assert counted.input_tokens > 100

    run_async(test, debug=True)


def test_models_in_both_dialects(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            model_that_says(tmp_path, "ok") as server,
            anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0) as claude,
            openai_of(server.url) as client,
        ):
            models = await claude.models.list(limit=1000)
            assert [(model.type, model.id, model.display_name) for model in models.data] == [("model", "test", "test")]
            assert not models.has_more and models.data[0].created_at.year > 2000
            assert (await claude.models.retrieve("test")).id == "test"
            assert [model.object for model in (await client.models.list()).data] == ["model"]

    run_async(test, debug=True)


def test_codex_history_of_its_own_tools(tmp_path: Path) -> None:
    patch = "*** Begin Patch"
    items = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "reasoning", "summary": [], "content": None, "encrypted_content": None},
        {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": patch, "status": "completed"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "Done!"},
        {
            "type": "local_shell_call",
            "call_id": "c2",
            "status": "completed",
            "action": {"type": "exec", "command": ["ls"]},
        },
        {"type": "local_shell_call_output", "call_id": "c2", "output": "a.py"},
        {"type": "function_call", "call_id": "c3", "name": "shell", "arguments": "{}", "namespace": "mcp"},
        {"type": "function_call_output", "call_id": "c3", "output": [{"type": "input_text", "text": "b.py"}]},
        {"type": "compaction", "encrypted_content": "x"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go on"}]},
    ]

    async def test() -> None:
        async with model_that_says(tmp_path, "ok", PLAIN) as server:
            tools = [{"type": "function", "name": "shell", "parameters": {"type": "object"}, "strict": False}]
            status, answer = await server.post("/v1/responses", {"input": items, "tools": tools, "store": False})
            assert status == 200, answer
            ids = memoryview(server.engine.seen[-1].prompt).cast("i").tolist()
            prompt = bytes(token for token in ids if token < 256).decode()
            for text in (patch, "apply_patch", "Done!", '"ls"', "a.py", "b.py", "go on"):
                assert text in prompt, text

    run_async(test, debug=True)
