"""Thousands of malformed or extreme requests: no 500, no hang, an error body each, and a canary beside them.

TSD_FUZZ sets how many (10,000 for the recorded figure).
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from typing import Any

from support.bad_requests import Bad, bad_request
from support.front_server import Server, run_async, serving

COUNT = int(os.environ.get("TSD_FUZZ", "1500"))
AT_ONCE = 8
HANG_S = 20.0


async def send(server: Server, bad: Bad) -> tuple[int, bytes]:
    async with server.session.post(bad.path, data=bad.body) as response:
        return response.status, await response.read()


async def canary(server: Server) -> str:
    body = {"prompt": "3 1 4 1 5", "max_tokens": 300, "stream": True, "seed": 7}
    events = await server.events("/v1/completions", body)
    return "".join(event["choices"][0]["text"] for event in events[:-1])


def check(number: int, bad: Bad, status: int, body: bytes) -> None:
    told = (number, bad.path, bad.body[:300], status, body[:300])
    assert status < 500 or status == 501, told
    if status == 200:
        assert b'"internal' not in body, told
        return
    error: Any = json.loads(body)["error"]
    assert error["message"] and error["type"], told
    assert "Traceback" not in error["message"] and "/work" not in error["message"] and "0x7" not in error["message"], (
        told
    )


def test_ten_thousand_bad_requests() -> None:
    async def test() -> None:
        async with serving(step_s=0.002) as server:
            alone = await canary(server)
            seen: Counter[int] = Counter()
            numbers = iter(range(COUNT))

            async def worker() -> None:
                for number in numbers:
                    bad = bad_request(number)
                    async with asyncio.timeout(HANG_S):
                        status, body = await send(server, bad)
                    check(number, bad, status, body)
                    seen[status] += 1

            async def watch() -> int:
                rounds = 0
                while seen.total() < COUNT:
                    assert await canary(server) == alone
                    rounds += 1
                return rounds

            results = await asyncio.gather(watch(), *(worker() for _ in range(AT_ONCE)))
            print(dict(sorted(seen.items())), "canaries", results[0])
            assert seen[400] > COUNT // 3 and results[0] >= 1
            assert (await server.get("/health"))[0] == 200
            async with asyncio.timeout(20):  # those in the background may still run
                while (await server.get("/load"))[1]["requests"]:  # noqa: ASYNC110 (as an operator does)
                    await asyncio.sleep(0.05)

    run_async(test, seconds=60 + COUNT / 20)
