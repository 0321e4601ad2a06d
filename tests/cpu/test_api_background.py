"""Responses in the background and conversations, through the openai client."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai
from support.byte_model import model_that_says
from support.front_server import Server, run_async, serving, until

ROUTE = "/v1/responses"


def client_of(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


async def polled(server: Server, name: str, wanted: set[str]) -> None:
    async with asyncio.timeout(20):
        while (await server.get(f"{ROUTE}/{name}"))[1]["status"] not in wanted:  # noqa: ASYNC110 (as a client does)
            await asyncio.sleep(0.01)


def test_stored_polled_and_built_upon(tmp_path: Path) -> None:
    async def test() -> None:
        async with model_that_says(tmp_path, "Blue.") as server, client_of(server.url) as client:
            server.engine.hold = True
            made = await client.responses.create(model="test", input="Colour?", background=True)
            assert made.status == "queued" and made.background
            assert (await client.responses.retrieve(made.id)).status == "queued"
            status, answer = await server.post(ROUTE, {"input": "And?", "previous_response_id": made.id})
            assert (status, answer["error"]["code"]) == (400, "response_in_progress")
            server.engine.hold = False
            server.engine._wake.set()
            await polled(server, made.id, {"completed"})
            got = await client.responses.retrieve(made.id)
            assert got.status == "completed" and got.output_text == "Blue." and got.usage is not None
            again = await client.responses.cancel(made.id)
            assert again.status == "completed"
            await client.responses.create(model="test", input="And?", previous_response_id=made.id)
            prompt = bytes(t for t in memoryview(server.engine.seen[-1].prompt).cast("i").tolist() if t < 256)
            assert b"Colour?" in prompt and b"Blue." in prompt
            assert (await server.get("/load"))[1]["requests"] == 0 and server.task is not None

    run_async(test, debug=True)


def test_cancelled_and_deleted() -> None:
    async def test() -> None:
        async with serving(step_s=0.01) as server:
            body = {"input": "1 2", "max_output_tokens": 400, "background": True}
            _, made = await server.post(ROUTE, body)
            await until(lambda: server.engine.running)
            await polled(server, made["id"], {"in_progress"})
            status, answer = await server.post(f"{ROUTE}/{made['id']}/cancel")
            assert (status, answer["status"]) == (200, "cancelled")
            await until(lambda: not server.engine.running)
            assert (await server.get(f"{ROUTE}/{made['id']}"))[1]["status"] == "cancelled"
            assert (await server.post(f"{ROUTE}/{made['id']}/cancel"))[0] == 200
            _, made = await server.post(ROUTE, body)
            await until(lambda: server.engine.running)
            async with server.session.delete(f"{ROUTE}/{made['id']}") as response:
                assert response.status == 200
            await until(lambda: not server.engine.running)
            await asyncio.sleep(0.05)
            assert (await server.get(f"{ROUTE}/{made['id']}"))[0] == 404
            assert (await server.get("/load"))[1]["requests"] == 0

    run_async(test, debug=True)


def test_a_stream_outlives_its_client_and_is_taken_up_again(tmp_path: Path) -> None:
    said = "One two three four."

    async def test() -> None:
        async with (
            model_that_says(tmp_path, said, reasoning_parser="qwen3") as server,
            client_of(server.url) as client,
        ):
            server.engine.step_s = 0.01
            stream = await client.responses.create(model="test", input="x", background=True, stream=True)
            seen: list[Any] = []
            async for event in stream:
                seen.append(event)
                if event.type == "response.output_text.delta":
                    break
            await stream.close()
            assert [event.type for event in seen[:3]] == [
                "response.created",
                "response.queued",
                "response.in_progress",
            ]
            name = seen[0].response.id
            follower = await client.responses.retrieve(name, stream=True, starting_after=seen[-1].sequence_number)
            seen += [event async for event in follower]
            assert [event.sequence_number for event in seen] == list(range(len(seen)))
            assert "".join(e.delta for e in seen if e.type == "response.output_text.delta") == said
            assert seen[-1].type == "response.completed"
            whole = [event async for event in await client.responses.retrieve(name, stream=True)]
            assert [event.type for event in whole] == [event.type for event in seen]
            plain = await client.responses.create(model="test", input="x")
            status, answer = await server.get(f"{ROUTE}/{plain.id}?stream=true")
            assert (status, answer["error"]["param"]) == (400, "stream")

    run_async(test, debug=True)


def test_a_background_failure_is_told(tmp_path: Path) -> None:
    async def test() -> None:
        async with model_that_says(tmp_path, "ok") as server:
            server.engine.refuse = ("queue_full", "no room")
            _, made = await server.post(ROUTE, {"input": "x", "background": True, "stream": False})
            await until(lambda: server.engine.seen)
            await asyncio.sleep(0.05)
            _, got = await server.get(f"{ROUTE}/{made['id']}")
            assert got["status"] == "failed" and got["error"]["code"] == "rate_limit_exceeded"

    run_async(test, debug=True)


def test_conversations(tmp_path: Path) -> None:
    async def test() -> None:
        async with model_that_says(tmp_path, "Blue.") as server, client_of(server.url) as client:
            first: Any = [{"type": "message", "role": "system", "content": "Be brief."}]
            made = await client.conversations.create(items=first, metadata={"a": "b"})
            assert made.object == "conversation" and made.metadata == {"a": "b"}
            answer = await client.responses.create(model="test", input="Colour?", conversation=made.id)
            assert answer.conversation is not None and answer.conversation.id == made.id
            await client.responses.create(model="test", input="And?", conversation={"id": made.id})
            prompt = bytes(t for t in memoryview(server.engine.seen[-1].prompt).cast("i").tolist() if t < 256)
            assert b"Be brief." in prompt and b"Colour?" in prompt and b"Blue." in prompt and b"And?" in prompt
            texts = []
            async for item in client.conversations.items.list(made.id, order="asc", limit=2):
                texts.append(item.content[0].text)  # type: ignore[union-attr, index]
            assert texts == ["Be brief.", "Colour?", "Blue.", "And?", "Blue."]
            newest = await client.conversations.items.list(made.id, limit=1)
            assert newest.has_more and newest.data[0].content[0].text == "Blue."  # type: ignore[union-attr, index]
            added = await client.conversations.items.create(
                made.id, items=[{"type": "message", "role": "user", "content": "More"}]
            )
            name = str(added.data[0].id)
            got = await client.conversations.items.retrieve(name, conversation_id=made.id)
            assert got.content[0].text == "More"  # type: ignore[union-attr, index]
            await client.conversations.items.delete(name, conversation_id=made.id)
            assert (await server.get(f"/v1/conversations/{made.id}/items/{name}"))[0] == 404
            assert (await client.conversations.update(made.id, metadata={"c": "d"})).metadata == {"c": "d"}
            assert (await client.conversations.delete(made.id)).deleted
            assert (await server.get(f"/v1/conversations/{made.id}"))[0] == 404
            for body, status, param in (
                ({"input": "x", "conversation": made.id}, 404, "conversation"),
                ({"input": "x", "conversation": made.id, "previous_response_id": answer.id}, 400, None),
                ({"input": "x", "conversation": 5}, 400, "conversation"),
            ):
                got_status, error = await server.post(ROUTE, body)
                assert got_status == status, error
                assert param is None or error["error"]["param"] == param
            image = {"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}
            status, error = await server.post("/v1/conversations", {"items": [image]})
            assert (status, error["error"]["param"]) == (400, "items[0].content[0]")

    run_async(test, debug=True)


def test_another_owner_sees_no_conversation(tmp_path: Path) -> None:
    async def test() -> None:
        async with model_that_says(tmp_path, "Blue.", options_keys=("a", "b")) as server:
            mine, other = {"Authorization": "Bearer a"}, {"Authorization": "Bearer b"}
            _, made = await server.post("/v1/conversations", {}, headers=mine)
            assert (await server.get(f"/v1/conversations/{made['id']}", headers=mine))[0] == 200
            assert (await server.get(f"/v1/conversations/{made['id']}", headers=other))[0] == 404
            body = {"input": "x", "conversation": made["id"]}
            assert (await server.post(ROUTE, body, headers=other))[0] == 404

    run_async(test, debug=True)
