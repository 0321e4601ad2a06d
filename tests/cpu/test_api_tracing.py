"""Traces of requests: the caller's context is honoured, spans say what happened, a missing collector hurts nobody."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.front_server import run_async, serving

from tsd.api.tracing import TraceContext, parse_traceparent

TEXT = "/v1/completions"
BODY = {"model": "test", "prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": True}
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("header", "context"),
    [
        (f"00-{TRACE}-{PARENT}-01", TraceContext(TRACE, PARENT, True)),
        (f"00-{TRACE}-{PARENT}-00", TraceContext(TRACE, PARENT, False)),
        (f" 00-{TRACE}-{PARENT}-03 ", TraceContext(TRACE, PARENT, True)),
        (f"cc-{TRACE}-{PARENT}-01-what-comes-later", TraceContext(TRACE, PARENT, True)),
        (f"00-{TRACE}-{PARENT}-01-more", None),
        (f"ff-{TRACE}-{PARENT}-01", None),
        (f"00-{'0' * 32}-{PARENT}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE.upper()}-{PARENT}-01", None),
        (f"00-{TRACE[:-1]}-{PARENT}-01", None),
        ("", None),
        (None, None),
    ],
)
def test_traceparent(header: str | None, context: TraceContext | None) -> None:
    assert parse_traceparent(header) == context


class Collector:
    """Takes OTLP/HTTP posts and keeps the spans."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                size = int(head.split("content-length: ")[1].split("\r\n")[0])
                value = json.loads(await reader.readexactly(size))
                for resource in value["resourceSpans"]:
                    assert {"key": "service.name", "value": {"stringValue": "tsd"}} in resource["resource"][
                        "attributes"
                    ]
                    self.spans += [span for scope in resource["scopeSpans"] for span in scope["spans"]]
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()


@contextlib.asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    collector = Collector()
    server = await asyncio.start_server(collector.serve, "127.0.0.1", 0)
    collector.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/traces"
    try:
        yield collector
    finally:
        server.close()


def attributes(span: dict[str, Any]) -> dict[str, Any]:
    return {item["key"]: next(iter(item["value"].values())) for item in span["attributes"]}


def test_spans_join_the_callers_trace_and_say_what_happened() -> None:
    async def test() -> None:
        began = time.time_ns()
        async with collecting() as collector:
            async with serving(options={"otlp_traces_endpoint": collector.url}) as server:
                traced = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
                assert (await server.post(TEXT, BODY, headers=traced))[0] == 200
                assert (await server.post(TEXT, BODY, headers={"traceparent": f"00-{TRACE}-{PARENT}-00"}))[0] == 200
                assert (await server.post(TEXT, BODY))[0] == 200
            roots = [span for span in collector.spans if span["name"] == "llm_request"]
            assert len(roots) == 2  # the caller that does not sample has none
            mine = next(span for span in roots if span["traceId"] == TRACE)
            other = next(span for span in roots if span["traceId"] != TRACE)
            assert mine["parentSpanId"] == PARENT and other["parentSpanId"] == "" and len(other["traceId"]) == 32
            facts = attributes(mine)
            assert facts["gen_ai.usage.prompt_tokens"] == "3" and facts["gen_ai.usage.completion_tokens"] == "4"
            assert facts["gen_ai.response.finish_reason"] == "length" and facts["http.route"] == TEXT
            assert 0 <= facts["gen_ai.latency.time_to_first_token"] <= facts["gen_ai.latency.e2e"]
            phases = [span for span in collector.spans if span["parentSpanId"] == mine["spanId"]]
            assert [span["name"] for span in phases] == ["queue", "prefill", "decode"]
            times = [int(span[key]) for span in (mine, *phases) for key in ("startTimeUnixNano", "endTimeUnixNano")]
            assert began - 10**9 < min(times) == times[0] and max(times) <= time.time_ns() + 10**9
            assert len({span["spanId"] for span in collector.spans}) == len(collector.spans)

    run_async(test)


def test_a_collector_that_is_away_costs_nothing_but_spans() -> None:
    async def test() -> None:
        async with serving(options={"otlp_traces_endpoint": "http://127.0.0.1:9/v1/traces"}) as server:
            for _ in range(3):
                assert (await server.post(TEXT, BODY))[0] == 200
            assert await server.stop() == 0

    run_async(test)
