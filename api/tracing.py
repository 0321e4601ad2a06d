"""One trace of each request, for OpenTelemetry collectors: OTLP over HTTP as JSON, written by hand.

Honours `traceparent` (W3C Trace Context): a request's spans join its caller's trace, and a caller that does not sample
gets none. Spans wait in a bounded queue and leave in batches; a collector that is slow or away costs spans, never
requests. Knows nothing about engines.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import secrets
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import aiohttp
import msgspec

if TYPE_CHECKING:
    from tsd.api.sequence import Sequence

log = logging.getLogger("tsd.api.tracing")

_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_MOST_WAITING = 10_000
_BATCH = 512
_PERIOD_S = 2.0
_TIMEOUT_S = 10.0
_SERVER, _INTERNAL = 2, 1  # span kinds
_ERROR = 2  # status code
_FAILED = ("error", "refused", "abort")


class TraceContext(NamedTuple):
    """The caller's trace (32 hex digits), its span (16), and whether it wants this one recorded."""

    trace_id: str
    parent_id: str
    sampled: bool


def parse_traceparent(text: str | None) -> TraceContext | None:
    """None for a header that is missing or malformed, as the specification asks: the trace then starts here."""
    found = _PARENT.fullmatch(text.strip()) if text else None
    if found is None:
        return None
    version, trace, parent, flags, more = found.groups()
    if version == "ff" or set(trace) == {"0"} or set(parent) == {"0"} or (version == "00" and more):
        return None
    return TraceContext(trace, parent, bool(int(flags, 16) & 1))


class Tracer:
    """`record` is called once a finished sequence and only appends; `run` is kept as a task; `close` sends the rest."""

    def __init__(self, endpoint: str, model: str) -> None:
        self.endpoint = endpoint
        self.dropped = 0
        self._model = model
        self._waiting: deque[dict[str, Any]] = deque()
        self._offset_ns = time.time_ns() - time.monotonic_ns()
        self._failing = False
        self._session: aiohttp.ClientSession | None = None

    def record(self, sequence: Sequence, reason: str, now: float) -> None:
        """The request's span and one for each phase that it reached."""
        context = sequence.job.trace
        if context is not None and not context.sampled:
            return
        if len(self._waiting) + 4 > _MOST_WAITING:
            self.dropped += 1
            return
        trace = context.trace_id if context is not None else secrets.token_hex(16)
        root = secrets.token_hex(8)
        began = sequence.arrived or now
        span = self._span(trace, root, context.parent_id if context else "", "llm_request", _SERVER, began, now)
        span["attributes"] = _attributes(self._facts(sequence, reason, now))
        if reason in _FAILED:
            span["status"] = {"code": _ERROR, "message": reason}
        self._waiting.append(span)
        for name, start, end in (
            ("queue", sequence.arrived, sequence.started),
            ("prefill", sequence.started, sequence.first_token),
            ("decode", sequence.first_token, sequence.last_token),
        ):
            if start and end and end >= start:
                self._waiting.append(self._span(trace, secrets.token_hex(8), root, name, _INTERNAL, start, end))

    def _facts(self, sequence: Sequence, reason: str, now: float) -> dict[str, Any]:
        """Names of OpenTelemetry's conventions for generative AI, and of vLLM's latencies."""
        facts = {
            "gen_ai.response.model": self._model,
            "gen_ai.request.id": sequence.job.public_id,
            "gen_ai.usage.prompt_tokens": len(sequence.prompt),
            "gen_ai.usage.completion_tokens": sequence.count,
            "gen_ai.usage.cached_tokens": sequence.cached_tokens,
            "gen_ai.response.finish_reason": reason,
            "gen_ai.latency.e2e": now - sequence.arrived if sequence.arrived else 0.0,
            "http.route": sequence.job.route,
        }
        if sequence.first_token:
            facts["gen_ai.latency.time_to_first_token"] = sequence.first_token - sequence.arrived
        if sequence.started:
            facts["gen_ai.latency.time_in_queue"] = sequence.started - sequence.arrived
        if sequence.engine is not None:
            facts["tsd.engine"] = sequence.engine.engine
        return facts

    def _span(
        self, trace: str, id_: str, parent: str, name: str, kind: int, start: float, end: float
    ) -> dict[str, Any]:
        return {
            "traceId": trace,
            "spanId": id_,
            "parentSpanId": parent,
            "name": name,
            "kind": kind,
            "startTimeUnixNano": str(int(start * 1e9) + self._offset_ns),
            "endTimeUnixNano": str(int(end * 1e9) + self._offset_ns),
        }

    async def run(self) -> None:
        """Sends what waits, every two seconds, until cancelled."""
        while True:
            await asyncio.sleep(_PERIOD_S)
            await self.flush()

    async def flush(self) -> None:
        """Send all that waits. A batch that the collector does not take is dropped, and that is logged once."""
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
            try:
                await self._post(batch)
                self._failing = False
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                self.dropped += len(batch)
                if not self._failing:
                    log.warning("no traces reach %s: %s", self.endpoint, error or type(error).__name__)
                self._failing = True
                return

    async def _post(self, spans: list[dict[str, Any]]) -> None:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S))
        resource = {"attributes": _attributes({"service.name": "tsd"})}
        body = {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {"name": "tsd"}, "spans": spans}]}]}
        headers = {"Content-Type": "application/json"}
        async with self._session.post(self.endpoint, data=msgspec.json.encode(body), headers=headers) as answer:
            answer.raise_for_status()

    async def close(self) -> None:
        """One last try, then let go of the connection."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PERIOD_S):
                await self.flush()
        if self._session is not None:
            await self._session.close()


def _attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    """OTLP's key-value form; integers travel as strings."""
    found = []
    for key, value in values.items():
        if isinstance(value, bool):
            typed: dict[str, Any] = {"boolValue": value}
        elif isinstance(value, int):
            typed = {"intValue": str(value)}
        elif isinstance(value, float):
            typed = {"doubleValue": value}
        else:
            typed = {"stringValue": str(value)}
        found.append({"key": key, "value": typed})
    return found
