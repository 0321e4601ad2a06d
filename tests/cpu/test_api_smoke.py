"""The front end to end over a fake engine: each route's ordinary answer."""

from __future__ import annotations

import openai
from support.front_server import run_async, serving

CHAT = {"model": "test", "messages": [{"role": "user", "content": "12 7 99"}], "max_tokens": 5}


def test_chat_whole_and_streamed_are_equal() -> None:
    async def test() -> None:
        async with serving() as server:
            status, whole = await server.post("/v1/chat/completions", CHAT)
            assert status == 200, whole
            events = await server.events("/v1/chat/completions", {**CHAT, "stream": True})
            assert events[-1] == "[DONE]"
            deltas = [event["choices"][0] for event in events[:-1]]
            assert deltas[0]["delta"] == {"role": "assistant", "content": ""}
            text = "".join(choice["delta"].get("content", "") for choice in deltas)
            assert text == whole["choices"][0]["message"]["content"] != ""
            assert deltas[-1]["finish_reason"] == whole["choices"][0]["finish_reason"] == "length"
            assert whole["usage"]["completion_tokens"] == 5
            assert whole["usage"]["prompt_tokens_details"]["cached_tokens"] == 3

    run_async(test, debug=True)


def test_openai_client() -> None:
    async def test() -> None:
        async with serving() as server:
            client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
            async with client:
                models = await client.models.list()
                assert models.data[0].id == "test"
                answer = await client.chat.completions.create(**CHAT, logprobs=True, top_logprobs=2, n=2, seed=5)
                assert len(answer.choices) == 2
                assert answer.choices[0].message.content != answer.choices[1].message.content
                assert len(answer.choices[0].logprobs.content) == 5
                assert len(answer.choices[0].logprobs.content[0].top_logprobs) == 2
                usage = {"include_usage": True}
                stream = await client.chat.completions.create(**CHAT, stream=True, stream_options=usage)
                chunks = [chunk async for chunk in stream]
                assert chunks[-1].usage.completion_tokens == 5 and chunks[-1].choices == []
                text = await client.completions.create(
                    model="test", prompt=["1 2", "3 4"], max_tokens=3, echo=True, logprobs=1
                )
                assert text.choices[0].text.startswith("1 2") and text.choices[1].text.startswith("3 4")
                assert text.choices[0].logprobs.token_logprobs[0] is None
                assert len(text.choices[0].logprobs.tokens) == 5

    run_async(test, debug=True)


def test_native_routes() -> None:
    async def test() -> None:
        async with serving() as server:
            assert (await server.post("/tokenize", {"prompt": "5 6 7"}))[1]["tokens"] == [5, 6, 7]
            assert (await server.post("/detokenize", {"tokens": [5, 6]}))[1] == {"prompt": " 5 6"}
            body = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 4}}
            status, got = await server.post("/generate", body)
            assert status == 200 and len(got["output_ids"]) == 4
            events = await server.events("/generate", {**body, "stream": True})
            assert [token for event in events[:-1] for token in event["output_ids"]] == got["output_ids"]
            paths = (
                "/health",
                "/ready",
                "/load",
                "/get_server_info",
                "/get_model_info",
                "/v1/models",
                "/v1/models/test",
            )
            for path in paths:
                status, _ = await server.get(path)
                assert status == 200, path
            status, text = await server.get("/metrics")
            assert 'tsd:request_success_total{finished_reason="length",model_name="test"} 2.0' in text
            assert "tsd:kv_cache_usage_perc" in text
            assert (await server.get("/nowhere"))[0] == 404
            assert (await server.get("/v1/chat/completions"))[0] == 405

    run_async(test, debug=True)
