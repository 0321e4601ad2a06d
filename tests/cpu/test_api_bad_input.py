"""One bad request gets its answer and hurts nobody: a canary stream beside it is byte-identical."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
from typing import Any

import pytest
from support.front_server import Server, limits, run_async, serving, until

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
IMAGE = [{"type": "image_url"}]
MESSAGES = [{"role": "user", "content": "1 2"}]


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": MESSAGES, "max_tokens": 2, **fields}


def text(**fields: Any) -> dict[str, Any]:
    return {"prompt": "1 2", "max_tokens": 2, **fields}


def raw(field: str, value: str) -> str:
    return f'{{"messages":[{{"role":"user","content":"1"}}],"max_tokens":2,"{field}":{value}}}'


BAD: list[tuple[str, str, Any, int, str | None]] = [
    ("empty prompt", TEXT, text(prompt=""), 400, "prompt"),
    ("list of an empty prompt", TEXT, text(prompt=[""]), 400, "prompt"),
    ("no prompts", TEXT, text(prompt=[]), 400, "prompt"),
    ("no prompt", TEXT, {"max_tokens": 2}, 400, "prompt"),
    ("mixed prompt", TEXT, text(prompt=["a", 1]), 400, "prompt"),
    ("nested prompt", TEXT, text(prompt=[[[1]]]), 400, "prompt"),
    ("257 prompts", TEXT, text(prompt=["1"] * 257), 400, "prompt"),
    ("id out of vocabulary", TEXT, text(prompt=[5_000_000]), 400, "prompt"),
    ("negative id", TEXT, text(prompt=[-1]), 400, "prompt"),
    ("bool as id", TEXT, text(prompt=[True]), 400, "prompt"),
    ("native id out of vocabulary", "/generate", {"input_ids": [9_999_999]}, 400, "input_ids"),
    ("native without a prompt", "/generate", {}, 400, "input_ids"),
    ("native with an empty prompt", "/generate", {"input_ids": []}, 400, "prompt"),
    ("bias on an unknown id", CHAT, chat(logit_bias={"9999999": 5}), 400, "logit_bias"),
    ("bias on a word", CHAT, chat(logit_bias={"x": 5}), 400, "logit_bias"),
    ("bias too strong", CHAT, chat(logit_bias={"1": 101}), 400, "logit_bias"),
    ("bias entries", CHAT, chat(logit_bias={str(i): 1 for i in range(1025)}), 400, "logit_bias"),
    ("top_logprobs", CHAT, chat(logprobs=True, top_logprobs=1_000_000), 400, "top_logprobs"),
    ("top_logprobs without logprobs", CHAT, chat(top_logprobs=2), 400, "top_logprobs"),
    ("completion logprobs", TEXT, text(logprobs=21), 400, "logprobs"),
    ("n", CHAT, chat(n=5_000_000), 400, "n"),
    ("n 0", CHAT, chat(n=0), 400, "n"),
    ("n 0 streamed", CHAT, chat(n=0, stream=True), 400, "n"),
    ("seed 2**64", CHAT, chat(seed=2**64), 400, "seed"),
    ("seed 2**63", CHAT, chat(seed=2**63), 400, "seed"),
    ("seed -1", CHAT, chat(seed=-1), 400, "seed"),
    ("max_tokens 0", CHAT, chat(max_tokens=0), 400, "max_tokens"),
    ("max_tokens 0 again", CHAT, chat(max_tokens=0), 400, "max_tokens"),
    ("max_tokens 0 text", TEXT, text(max_tokens=0), 400, "max_tokens"),
    ("max_tokens -1", CHAT, chat(max_tokens=-1), 400, "max_tokens"),
    ("min over max", CHAT, chat(min_tokens=3), 400, "min_tokens"),
    ("temperature", CHAT, chat(temperature=-0.1), 400, "temperature"),
    ("top_p 0", CHAT, chat(top_p=0), 400, "top_p"),
    ("top_p", CHAT, chat(top_p=1.01), 400, "top_p"),
    ("min_p", CHAT, chat(min_p=2), 400, "min_p"),
    ("top_k", CHAT, chat(top_k=-2), 400, "top_k"),
    ("penalty", CHAT, chat(frequency_penalty=2.1), 400, "frequency_penalty"),
    ("presence", CHAT, chat(presence_penalty=-2.1), 400, "presence_penalty"),
    ("repetition", CHAT, chat(repetition_penalty=0), 400, "repetition_penalty"),
    ("priority", CHAT, chat(priority=2**40), 400, "priority"),
    ("empty stop", CHAT, chat(stop=""), 400, "stop"),
    ("17 stops", CHAT, chat(stop=["a"] * 17), 400, "stop"),
    ("long stop", CHAT, chat(stop=["a" * 257]), 400, "stop"),
    ("stop id", CHAT, chat(stop_token_ids=[10**9]), 400, "stop_token_ids"),
    ("salt", CHAT, chat(cache_salt="s" * 513), 400, "cache_salt"),
    ("wrong type", CHAT, chat(temperature="hot"), 400, "temperature"),
    ("string n", CHAT, chat(n="2"), 400, "n"),
    ("no messages", CHAT, {"max_tokens": 2}, 400, "messages"),
    ("empty messages", CHAT, chat(messages=[]), 400, "messages"),
    ("unknown role", CHAT, chat(messages=[{"role": "wizard", "content": ""}]), 400, "messages[0].role"),
    ("an image", CHAT, chat(messages=[{"role": "user", "content": IMAGE}]), 400, "messages[0].content[0]"),
    ("suffix", TEXT, text(suffix="x"), 400, "suffix"),
    ("best_of", TEXT, text(best_of=4), 400, "best_of"),
    ("beam search", TEXT, text(use_beam_search=True), 400, "use_beam_search"),
    ("template", CHAT, chat(chat_template="{{ 1 }}"), 400, "chat_template"),
    ("template keyword", CHAT, chat(chat_template_kwargs={"messages": "x"}), 400, "chat_template_kwargs"),
    ("stream_options alone", CHAT, chat(stream_options={"include_usage": True}), 400, "stream_options"),
    ("unknown model", CHAT, chat(model="other"), 404, "model"),
    ("deep unknown field", CHAT, raw("junk", "[" * 10_000 + "]" * 10_000), 400, None),
    ("deep unclosed", CHAT, raw("junk", "[" * 10_000), 400, None),
    ("huge float", CHAT, raw("temperature", "1e999"), 400, "temperature"),
    ("NaN", CHAT, raw("temperature", "NaN"), 400, None),
    ("lone surrogate", CHAT, '{"messages":[{"role":"user","content":"\\ud800"}]}', 400, None),
    ("not JSON", CHAT, "hello", 400, None),
    ("nothing", CHAT, "", 400, None),
    ("a list", CHAT, "[]", 400, None),
    ("bad UTF-8", CHAT, b'{"messages":[{"role":"user","content":"\xff"}]}', 400, None),
    ("too long", TEXT, text(prompt=[5] * 512), 400, "prompt"),
    ("too long by one", TEXT, text(prompt=[5] * 513), 400, "prompt"),
    ("too long text", TEXT, text(prompt="5 " * 600), 400, "prompt"),
    ("too long chat", CHAT, chat(messages=[{"role": "user", "content": "5 " * 600}]), 400, "messages"),
    ("abort of nothing", "/abort", {"request_id": "gen-1"}, 404, "request_id"),
    ("abort of what", "/abort", {}, 400, "request_id"),
    ("tokenize nothing", "/tokenize", {}, 400, "prompt"),
    ("detokenize an unknown id", "/detokenize", {"tokens": [10**7]}, 400, "tokens"),
]  # fmt: skip


async def canary(server: Server) -> bytes:
    body = {"prompt": "3 1 4 1 5", "max_tokens": 400, "stream": True, "seed": 7}
    async with server.session.post(TEXT, json=body) as response:
        lines = [json.loads(line[6:]) async for line in response.content if line.startswith(b"data: {")]
    return "".join(line["choices"][0]["text"] for line in lines).encode()


def test_every_bad_request_gets_its_answer() -> None:
    async def test() -> None:
        async with serving(step_s=0.001) as server:
            alone = await canary(server)
            beside = asyncio.create_task(canary(server))
            for name, path, body, status, param in BAD:
                got, answer = await server.post(path, body)
                assert got == status, (name, got, answer)
                error = answer["error"]
                assert set(error) == {"message", "type", "param", "code"} and error["message"], name
                assert error["param"] == param, (name, error)
            assert await beside == alone
            assert (await server.get("/health"))[0] == 200
            assert not server.engine.running

    run_async(test)


def test_context_edge() -> None:
    async def test() -> None:
        async with serving() as server:
            status, answer = await server.post(TEXT, {"prompt": [5] * 511})
            assert status == 200
            assert answer["usage"]["completion_tokens"] == 1
            assert answer["choices"][0]["finish_reason"] == "length"

    run_async(test)


EDGES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("n", chat(n=3), chat(n=4)),
    ("top_logprobs", chat(logprobs=True, top_logprobs=3), chat(logprobs=True, top_logprobs=4)),
    ("stop_strings", chat(stop=["x"] * 3), chat(stop=["x"] * 4)),
    ("stop_characters", chat(stop="xxx"), chat(stop="xxxx")),
    ("stop_token_ids", chat(stop_token_ids=[1] * 3), chat(stop_token_ids=[1] * 4)),
    ("logit_bias", chat(logit_bias={str(i): 0 for i in range(3)}), chat(logit_bias={str(i): 0 for i in range(4)})),
    ("messages", chat(messages=MESSAGES * 3), chat(messages=MESSAGES * 4)),
    ("name_characters", chat(user="xxx"), chat(user="xxxx")),
]


@pytest.mark.parametrize(("name", "good", "bad"), EDGES, ids=[edge[0] for edge in EDGES])
def test_configured_limit_holds_at_its_edge(name: str, good: dict[str, Any], bad: dict[str, Any]) -> None:
    async def test() -> None:
        async with serving(options={"limits": limits(**{name: 3})}) as server:
            status, answer = await server.post(CHAT, good)
            assert status == 200, answer
            status, answer = await server.post(CHAT, bad)
            assert status == 400, answer

    run_async(test)


def test_sizes() -> None:
    async def test() -> None:
        config = {"limits": limits(body_bytes=1000, prompts=2, sequences=4, json_depth=5, template_bytes=100)}
        async with serving(options=config) as server:
            fits = json.dumps(text()).ljust(1000)
            assert (await server.post(TEXT, fits))[0] == 200
            assert (await server.post(TEXT, fits + " "))[0] == 413

            async def chunks() -> Any:
                for _ in range(11):
                    yield b" " * 100

            async with server.session.post(TEXT, data=chunks()) as response:
                assert response.status == 413
            assert (await server.post(TEXT, text(prompt=["1"] * 2, n=2)))[0] == 200
            assert (await server.post(TEXT, text(prompt=["1"] * 2, n=3)))[0] == 400
            assert (await server.post(TEXT, text(prompt=["1"] * 3)))[0] == 400
            assert (await server.post(CHAT, raw("x", "[" * 4 + "]" * 4)))[0] == 200
            assert (await server.post(CHAT, raw("x", "[" * 5 + "]" * 5)))[0] == 400
            assert (await server.post(CHAT, raw("x", '"' + "[" * 50 + '"')))[0] == 200
            assert (await server.post(CHAT, chat(messages=[{"role": "user", "content": "1 " * 60}])))[0] == 400
            async with server.session.get("/health", headers={"x-a": "a" * 9000, "x-b": "b" * 9000}) as response:
                assert response.status == 431
                assert (await response.json())["error"]["code"] == "headers_too_large"

    run_async(test)


def test_compressed_bodies_are_bounded_by_what_they_become() -> None:
    async def test() -> None:
        async with serving(options={"limits": limits(body_bytes=100_000)}) as server:
            headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
            fine, bomb = (gzip.compress(json.dumps(text()).ljust(size).encode()) for size in (90_000, 50_000_000))
            assert len(bomb) < 100_000
            for body, expected in ((fine, 200), (bomb, 413)):
                async with server.session.post(TEXT, data=body, headers=headers) as response:
                    assert response.status == expected, await response.text()

    run_async(test)


def test_a_head_that_never_ends() -> None:
    async def test() -> None:
        async with serving(options={"limits": limits(header_seconds=0.3)}) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"POST /v1/completions HTTP/1.1\r\nX-Slow: ")
            beside = asyncio.create_task(server.post(TEXT, text(max_tokens=200)))
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()
            assert (await beside)[0] == 200

    run_async(test)


def test_a_body_that_never_comes() -> None:
    async def test() -> None:
        async with serving(options={"limits": limits(body_seconds=0.2)}) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
            assert b"408" in await reader.readline()
            writer.close()

    run_async(test)


def test_large_bodies_share_a_budget() -> None:
    async def test() -> None:
        config = {"limits": limits(bodies_bytes=2000, body_bytes=1500, body_seconds=1.0)}
        async with serving(options=config) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1400\r\n\r\n{")
            await asyncio.sleep(0.1)
            status, answer = await server.post(TEXT, json.dumps(text()).ljust(1000))
            assert status == 429 and answer["error"]["code"] == "busy"
            assert (await server.post(TEXT, text()))[0] == 200
            assert b"408" in await reader.readline()
            assert (await server.post(TEXT, json.dumps(text()).ljust(1000)))[0] == 200
            writer.close()

    run_async(test)


def test_queue_bounds_answer_429() -> None:
    async def test() -> None:
        async with serving(hold=True, options={"limits": limits(queued_requests=2)}) as server:
            waiting = [asyncio.create_task(server.post(TEXT, text())) for _ in range(2)]
            await until(lambda: len(server.engine.running) == 2)
            async with server.session.post(TEXT, json=text()) as response:
                assert response.status == 429
                assert response.headers["Retry-After"] == "1"
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    run_async(test)


@pytest.mark.parametrize(
    ("code", "status"), [("queue_full", 429), ("never_fits", 400), ("context_length", 400), ("draining", 503)]
)
@pytest.mark.parametrize("stream", [False, True])
def test_engine_refusals_keep_their_status(code: str, status: int, stream: bool) -> None:
    async def test() -> None:
        async with serving(refuse=(code, "because")) as server:
            got, answer = await server.post(CHAT, chat(stream=stream))
            assert got == status
            assert answer["error"]["message"] == "because"

    run_async(test)


def test_null_and_unknown_fields_pass() -> None:
    async def test() -> None:
        async with serving() as server:
            names = ("n", "seed", "stop", "temperature", "tools", "response_format", "logit_bias", "functions", "audio")
            nulls = dict.fromkeys(names)
            status, answer = await server.post(CHAT, chat(**nulls, some_new_field={"a": [1]}, store=True, metadata={}))
            assert status == 200, answer
            same_id = [server.post(CHAT, chat(request_id="twice")) for _ in range(2)]
            assert [status for status, _ in await asyncio.gather(*same_id)] == [200, 200]

    run_async(test)
