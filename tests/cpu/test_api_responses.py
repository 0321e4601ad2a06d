"""The responses dialect, read by the openai client; a request as Codex sends it; the full order of events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
from support.byte_model import model_that_says
from support.front_server import run_async

READ: dict[str, Any] = {"reasoning_parser": "qwen3"}
ROUTE = "/v1/responses"
WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather",
    "strict": False,
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
SAID = (
    "<think>\nhm\n</think>\n\nLet me look.\n"
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris ☀"}}\n</tool_call>'
)
CODEX: dict[str, Any] = {
    "model": "test",
    "instructions": "You are a coding agent.",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "sandbox: read-only"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}], "encrypted_content": "x"},
        {"type": "function_call", "name": "shell", "arguments": '{"command":["ls"]}', "call_id": "call_1"},
        {"type": "function_call_output", "call_id": "call_1", "output": "a.py"},
        {"type": "ghost_snapshot", "ghost_commit": {"id": "1"}},
        {"type": "web_search_call", "status": "completed", "action": {"type": "search"}},
    ],
    "tools": [
        WEATHER,
        {"type": "web_search", "external_web_access": False},
        {"type": "namespace", "name": "mcp", "tools": [{"type": "function", "name": "x"}]},
        {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}},
        {"type": "local_shell"},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0190",
    "text": {"verbosity": "medium"},
    "client_metadata": {"a": "b"},
}


def client_of(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def prompt_of(server: Any) -> str:
    ids = memoryview(server.engine.seen[-1].prompt).cast("i").tolist()
    return bytes(token for token in ids if token < 256).decode()


def test_order_of_events_and_whole_answer(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            model_that_says(tmp_path, SAID, tokens_per_step=50, **READ) as server,
            client_of(server.url) as client,
        ):
            ask: Any = {"model": "test", "input": "Weather?", "tools": [WEATHER]}
            whole = await client.responses.create(**ask)
            assert [item.type for item in whole.output] == ["reasoning", "message", "function_call"]
            assert whole.output_text == "Let me look." and whole.status == "completed"
            assert whole.usage is not None and whole.usage.input_tokens_details.cached_tokens == 3
            stream = await client.responses.create(**ask, stream=True)
            events = [event async for event in stream]
            kinds = [event.type.removeprefix("response.") for event in events]
            deduplicated = [kind for i, kind in enumerate(kinds) if i == 0 or kinds[i - 1] != kind]
            assert deduplicated == [
                *("created", "in_progress"),
                *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done"),
                *("content_part.done", "output_item.done"),
                *("output_item.added", "content_part.added", "output_text.delta", "output_text.done"),
                *("content_part.done", "output_item.done"),
                *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done"),
                *("output_item.done", "completed"),
            ]
            assert [event.sequence_number for event in events] == list(range(len(events)))
            final = events[-1].response  # type: ignore[union-attr]
            assert [item.type for item in final.output] == [item.type for item in whole.output]
            assert final.output[2].arguments == '{"city": "Paris ☀"}'  # type: ignore[union-attr]
            assert final.usage == whole.usage

    run_async(test, debug=True)


def test_codex_request(tmp_path: Path) -> None:
    async def test() -> None:
        async with model_that_says(tmp_path, "Done.") as server:
            events = await server.events(ROUTE, CODEX)
            assert events[-1]["type"] == "response.completed"
            prompt = prompt_of(server)
            assert "You are a coding agent." in prompt and "sandbox: read-only" in prompt and "a.py" in prompt
            assert "get_weather" in prompt and "apply_patch" not in prompt
            assert (await server.get(f"{ROUTE}/{events[-1]['response']['id']}"))[0] == 404  # store: false

    run_async(test, debug=True)


def test_stored_responses(tmp_path: Path) -> None:
    async def test() -> None:
        async with model_that_says(tmp_path, "Blue.") as server, client_of(server.url) as client:
            first = await client.responses.create(model="test", input="Colour?", instructions="Be brief.")
            again = await client.responses.retrieve(first.id)
            assert again.output_text == "Blue."
            items = await client.responses.input_items.list(first.id)
            assert items.data[0].content[0].text == "Colour?"  # type: ignore[union-attr]
            second = await client.responses.create(model="test", input="And?", previous_response_id=first.id)
            prompt = prompt_of(server)
            assert "Colour?" in prompt and "Blue." in prompt and "And?" in prompt and "Be brief" not in prompt
            assert second.previous_response_id == first.id
            status, answer = await server.post(f"{ROUTE}/{first.id}/cancel")
            assert status == 400 and answer["error"]["code"] == "response_not_cancellable"
            await client.responses.delete(first.id)
            assert (await server.get(f"{ROUTE}/{first.id}"))[0] == 404
            for body in ({"input": "x", "previous_response_id": first.id}, {"input": "x", "model": "other"}):
                assert (await server.post(ROUTE, body))[0] == 404

    run_async(test, debug=True)


def test_another_owner_sees_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with model_that_says(tmp_path, "Blue.", options_keys=("a", "b")) as server:
            headers = {"Authorization": "Bearer a"}
            _, made = await server.post(ROUTE, {"input": "x"}, headers=headers)
            assert (await server.get(f"{ROUTE}/{made['id']}", headers=headers))[0] == 200
            other = {"Authorization": "Bearer b"}
            assert (await server.get(f"{ROUTE}/{made['id']}", headers=other))[0] == 404
            body = {"input": "x", "previous_response_id": made["id"]}
            assert (await server.post(ROUTE, body, headers=other))[0] == 404

    run_async(test, debug=True)


def test_length_is_incomplete_and_bad_requests(tmp_path: Path) -> None:
    async def test() -> None:
        async with model_that_says(tmp_path, "one two three") as server:
            _, cut = await server.post(ROUTE, {"input": "x", "max_output_tokens": 3})
            assert cut["status"] == "incomplete" and cut["incomplete_details"] == {"reason": "max_output_tokens"}
            events = await server.events(ROUTE, {"input": "x", "max_output_tokens": 3, "stream": True})
            assert events[-1]["type"] == "response.incomplete"
            for body, param in (
                ({}, "input"),
                ({"input": []}, "input"),
                ({"input": "x", "background": True, "store": False}, "background"),
                ({"input": "x", "prompt": {"id": "pmpt_1"}}, "prompt"),
                ({"input": "x", "max_output_tokens": 0}, "max_tokens"),
                ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
                ({"input": "x", "tools": [WEATHER], "tool_choice": {"type": "file_search"}}, "tool_choice.type"),
                ({"input": "x", "text": {"format": {"type": "xml"}}}, "response_format.type"),
            ):
                status, answer = await server.post(ROUTE, body)
                assert (status, answer["error"]["param"]) == (400, param), (body, answer)

    run_async(test, debug=True)


def test_logprobs_of_the_text(tmp_path: Path) -> None:
    ask: Any = {"model": "test", "input": "x", "top_logprobs": 2, "include": ["message.output_text.logprobs"]}
    said = "<think>\nhm\n</think>\n\nA ☀."

    async def test() -> None:
        async with model_that_says(tmp_path, said, **READ) as server, client_of(server.url) as client:
            whole = await client.responses.create(**ask)
            part = whole.output[1].content[0]  # type: ignore[union-attr, index]
            told = part.logprobs
            assert told and b"".join(bytes(entry.bytes) for entry in told).decode().strip() == "A ☀."
            assert all(len(entry.top_logprobs) == 2 for entry in told)
            seen = []
            async for event in await client.responses.create(**ask, stream=True):
                if event.type == "response.output_text.delta":
                    seen += [entry.token for entry in event.logprobs]
            assert seen == [entry.token for entry in told]
            plain = await client.responses.create(model="test", input="x")
            assert plain.output[1].content[0].logprobs == []  # type: ignore[union-attr, index]
            status, answer = await server.post(ROUTE, {"input": "x", "top_logprobs": 21})
            assert (status, answer["error"]["param"]) == (400, "top_logprobs")

    run_async(test, debug=True)
