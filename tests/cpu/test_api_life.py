"""Lives and deaths: disconnects, engine faults, draining, pauses, slow starts, auth, the admin stream."""

from __future__ import annotations

import asyncio
import json
import socket
from array import array
from typing import Any

import pytest
from support.fake_engine import FakeEngine
from support.front_server import Server, front_group, limits, run_async, serving, until

from tsd.engine.protocol import Submit

TEXT = "/v1/completions"
LONG = {"prompt": "1 2 3", "max_tokens": 400}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def settled(server: Server) -> None:
    await until(lambda: not server.engine.running)


@pytest.mark.parametrize("stream", [False, True])
def test_disconnect_aborts(stream: bool) -> None:
    async def test() -> None:
        async with serving(step_s=0.005) as server:
            for _ in range(20):
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                body = json.dumps({**LONG, "stream": stream}).encode()
                writer.write(
                    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
                )
                if stream:
                    await reader.readuntil(b"data: ")
                else:
                    await until(lambda: server.engine.running)
                writer.close()
                await settled(server)
            assert len(server.engine.aborted) == 20
            _, load = await server.get("/load")
            assert load["requests"] == 0
            _, text = await server.get("/metrics")
            assert 'finished_reason="abort",model_name="test"} 20.0' in text

    run_async(test, debug=True)


def test_disconnect_while_waiting() -> None:
    async def test() -> None:
        async with serving(hold=True) as server:
            task = asyncio.create_task(server.post(TEXT, LONG))
            await until(lambda: server.engine.running)
            task.cancel()
            await settled(server)
            _, load = await server.get("/load")
            assert load["engines"][0]["waiting"] == 0 and load["engines"][0]["queued_tokens"] == 0

    run_async(test)


@pytest.mark.parametrize("how", ["die_after_steps", "fatal_after_steps"])
def test_engine_death_ends_streams_with_an_error(how: str) -> None:
    async def test() -> None:
        async with serving(step_s=0.002, **{how: 20}) as server:
            whole = asyncio.create_task(server.post(TEXT, LONG))
            events = await server.events(TEXT, {**LONG, "stream": True})
            assert events[-1]["error"]["code"] == "engine_died"
            status, answer = await whole
            assert status == 500 and answer["error"]["type"] == "engine_error"
            assert (await server.get("/health"))[0] == 503
            assert (await server.get("/ready"))[0] == 503
            assert (await server.post(TEXT, LONG))[0] == 503
            assert await server.task == 1

    run_async(test, debug=True)


def test_silent_engine_is_unhealthy() -> None:
    async def test() -> None:
        async with serving(options={"stall_s": 0.5}) as server:
            assert (await server.get("/health"))[0] == 200
            server.engine._tasks[1].cancel()  # no heartbeat, as if stopped
            await asyncio.sleep(0.7)
            assert (await server.get("/health"))[0] == 503
            assert (await server.post(TEXT, LONG))[0] == 503

    run_async(test)


def test_answers_while_the_engine_loads() -> None:
    async def test() -> None:
        async with serving(wait=False, ready_after_s=0.5) as server:
            await asyncio.sleep(0.2)
            assert (await server.get("/health"))[0] == 200
            status, body = await server.get("/ready")
            assert status == 503 and body["engines"][0]["phases"][0]["phase"] == "weights"
            async with server.session.post(TEXT, json=LONG) as response:
                assert response.status == 503 and response.headers["Retry-After"]
            await asyncio.sleep(0.5)
            assert (await server.get("/ready"))[0] == 200

    run_async(test)


def test_stop_drains() -> None:
    async def test() -> None:
        async with serving(step_s=0.002) as server:
            stream = asyncio.create_task(server.events(TEXT, {**LONG, "stream": True}))
            await until(lambda: server.engine.running)
            stopping = asyncio.create_task(server.stop())
            await asyncio.sleep(0.05)
            async with server.session.post(TEXT, json=LONG) as response:
                assert response.status == 503 and response.headers["Retry-After"] == "5"
            assert (await server.get("/ready"))[0] == 503
            events = await stream
            assert events[-1] == "[DONE]"
            assert await stopping == 0

    run_async(test)


def test_operator_actions() -> None:
    async def test() -> None:
        async with serving(step_s=0.002) as server:
            assert (await server.post("/pause"))[1]["state"] == "paused"
            assert (await server.post(TEXT, LONG))[0] == 503
            assert (await server.post("/resume"))[1]["state"] == "ready"
            assert (await server.post("/flush_cache"))[1]["engines"] == [{"done": "flush_cache", "argument": ""}]
            flushed = await server.post("/flush_cache?disk=true")
            assert flushed[1]["engines"] == [{"done": "flush_cache", "argument": "disk"}]
            assert (await server.post("/flush_cache?disk=maybe"))[0] == 400
            assert (await server.post("/admin/log_level", {"level": "info"}))[0] == 200
            assert (await server.post("/admin/log_level", {"level": "loud"}))[0] == 400
            stream = asyncio.create_task(server.events(TEXT, {**LONG, "stream": True}))
            await until(lambda: server.engine.running)
            _, found = await server.get("/admin/requests")
            name = found["requests"][0]["id"]
            assert (await server.get(f"/admin/requests?id={name}"))[1]["id"] == name
            assert (await server.post("/abort", {"request_id": name[:-1]}))[0] == 404
            assert (await server.post("/abort", {"request_id": name}))[0] == 200
            events = await stream
            assert events[-2]["choices"][0]["finish_reason"] == "abort"
            assert (await server.get("/admin/kernels"))[1]["engines"][0]["done"] == "kernels"
            assert (await server.get("/admin/pages?bin=x"))[0] == 400
            assert (await server.post("/drain"))[1]["state"] == "draining"
            assert (await server.post(TEXT, LONG))[0] == 503
            assert (await server.post("/resume"))[1]["state"] == "ready"

    run_async(test)


def test_admin_stream() -> None:
    async def test() -> None:
        async with serving(engines=2) as server:
            await server.post(TEXT, {"prompt": "1", "max_tokens": 2})
            async with server.session.get("/admin/stream?interval=0.5") as response:
                seen: list[dict[str, Any]] = []
                async for line in response.content:
                    if line.startswith(b"data: "):
                        seen.append(json.loads(line[6:]))
                    if len(seen) == 2:
                        break
            first = seen[0]
            assert first["version"] == 1 and first["server"]["counters"]["finished"] == 1
            assert first["server"]["latency"]["ttft_ms"]["p50"] >= 0
            assert [engine["state"] for engine in first["engines"]] == ["ready", "ready"]
            assert len(first["engines"][0]["events"]) == 1
            assert (await server.get("/admin/stream?interval=0.1"))[0] == 400

    run_async(test)


def test_keys() -> None:
    async def test() -> None:
        options = {"api_keys": ("one", "two"), "admin_key": "root", "salt_per_key": True}
        async with serving(step_s=0.005, options=options) as server:
            assert (await server.get("/health"))[0] == 200
            assert (await server.get("/v1/models"))[0] == 401
            assert (await server.get("/v1/models", headers=bearer("three")))[0] == 401
            assert (await server.get("/v1/models", headers=bearer("two")))[0] == 200
            assert (await server.get("/v1/models", headers={"x-api-key": "one"}))[0] == 200
            assert (await server.get("/admin/requests", headers=bearer("one")))[0] == 403
            assert (await server.get("/admin/requests"))[0] == 401
            assert (await server.get("/admin/requests", headers=bearer("root")))[0] == 200
            running = asyncio.create_task(server.post(TEXT, LONG, headers=bearer("one")))
            await until(lambda: server.engine.running)
            _, found = await server.get("/admin/requests", headers=bearer("root"))
            name = found["requests"][0]["id"]
            assert (await server.post("/abort", {"request_id": name}, headers=bearer("two")))[0] == 404
            assert (await server.post("/abort", {"request_id": name}, headers=bearer("one")))[0] == 200
            assert (await running)[1]["choices"][0]["finish_reason"] == "abort"
            await server.post(TEXT, {"prompt": "1", "max_tokens": 1}, headers=bearer("two"))
            salts = [message.cache_salt for message in server.engine.seen if isinstance(message, Submit)]
            assert len(set(salts)) == 2 and None not in salts

    run_async(test)


def test_slow_reader_is_cut_off() -> None:
    async def test() -> None:
        config = {"limits": limits(stream_buffer_bytes=100_000)}
        big = {"max_model_len": 500_000, "tokens_per_step": 200, "step_s": 0.001}
        async with serving(options=config, send_buffer=8192, **big) as server:
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
            client.setblocking(False)
            with client:
                await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", server.port))
                body = json.dumps({"prompt": "1", "max_tokens": 400_000, "stream": True}).encode()
                head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
                await asyncio.get_running_loop().sock_sendall(client, head + body)
                await until(lambda: server.engine.aborted)

    run_async(test)


def test_pings_while_the_engine_is_silent() -> None:
    async def test() -> None:
        async with serving(hold=True, options={"ping_s": 0.05}) as server:
            async with server.session.post(TEXT, json={**LONG, "stream": True}) as response:
                assert await response.content.readline() == b": ping\n"
            await settled(server)

    run_async(test)


def test_two_engines_share_and_keep_prefixes() -> None:
    async def test() -> None:
        async with serving(engines=2, max_model_len=4096, step_s=0.05) as server:
            prompts = [array("i", [k] * 600).tolist() for k in (30, 31)]
            for _ in range(3):
                await asyncio.gather(*(server.post(TEXT, {"prompt": p, "max_tokens": 3}) for p in prompts))

            def firsts(engine: FakeEngine) -> set[bytes]:
                return {message.prompt[:4] for message in engine.seen if isinstance(message, Submit)}

            assert len(firsts(server.engines[0])) == len(firsts(server.engines[1])) == 1

    run_async(test)


def test_cors() -> None:
    async def test() -> None:
        async with serving(options={"cors_origins": ("https://a.example",)}) as server:
            async with server.session.options(TEXT, headers={"Origin": "https://a.example"}) as response:
                assert response.status == 204
                assert response.headers["Access-Control-Allow-Origin"] == "https://a.example"
            async with server.session.get("/health", headers={"Origin": "https://b.example"}) as response:
                assert "Access-Control-Allow-Origin" not in response.headers

    run_async(test)


def test_another_front_checks_the_key_as_this_one_does() -> None:
    async def test() -> None:
        keys = {"api_keys": ("one", "two"), "admin_key": "root"}
        async with front_group(3, step_s=0.005, options=keys) as fronts:
            body = {"prompt": [5, 6, 7], "max_tokens": 2000}
            asked = asyncio.create_task(fronts[1].post(TEXT, body, headers=bearer("one")))
            await until(lambda: fronts[0].engine.running)
            for front in fronts:
                assert (await front.get("/admin/requests", headers=bearer("one")))[0] == 403
                _, found = await front.get("/admin/requests", headers=bearer("root"))
                (name,) = (row["id"] for row in found["requests"])
                assert name.startswith("cmpl-01")
                assert (await front.post("/abort", {"request_id": name}, headers=bearer("two")))[0] == 404
                assert (await front.post("/abort", {"request_id": name}))[0] == 401
                assert (await front.get("/metrics", headers=bearer("one")))[0] == 200
            assert (await fronts[2].post("/abort", {"request_id": name}, headers=bearer("one")))[0] == 200
            status, answer = await asked
            assert status == 200 and answer["choices"][0]["finish_reason"] == "abort"
            ask = {"input": "5", "max_output_tokens": 1}
            _, kept = await fronts[2].post("/v1/responses", ask, headers=bearer("one"))
            for front in fronts:
                where = f"/v1/responses/{kept['id']}"
                assert (await front.get(where, headers=bearer("two")))[0] == 404
                assert (await front.get(where))[0] == 401
                assert (await front.get(where, headers=bearer("one")))[0] == 200
                again = {**ask, "previous_response_id": kept["id"]}
                assert (await front.post("/v1/responses", again, headers=bearer("two")))[0] == 404
                assert (await front.post("/v1/responses", again, headers=bearer("one")))[0] == 200

    run_async(test, debug=True)


def test_a_client_that_leaves_another_fronts_stream_ends_the_request() -> None:
    async def test() -> None:
        async with front_group(2, step_s=0.005) as fronts:
            _, kept = await fronts[0].post("/v1/responses", {"input": "5", "max_output_tokens": 1})
            body = {"input": "6", "max_output_tokens": 2000, "previous_response_id": kept["id"], "stream": True}
            async with fronts[1].session.post("/v1/responses", json=body) as response:
                await response.content.readuntil(b"response.output_text.delta")
                assert fronts[0].engine.running
                response.close()
            await until(lambda: not fronts[0].engine.running)
            _, load = await fronts[1].get("/load")
            assert load["requests"] == 0

    run_async(test)
