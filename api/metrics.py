"""What a front counts: totals and histograms, rolling latency windows, one JSON line a request.

Hot counters are plain Python numbers; `figures.py` adds them up over fronts and `exposition.py` words them.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from time import monotonic
from typing import TYPE_CHECKING

import msgspec

from tsd.api.errors import ApiError
from tsd.api.figures import FrontFigures, Histogram, Sketch

if TYPE_CHECKING:
    from tsd.api.sequence import Sequence
    from tsd.api.tracing import Tracer

request_log = logging.getLogger("tsd.api.requests")

_SECONDS = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
    160.0,
)
_GAPS = (
    0.0005,
    0.001,
    0.0015,
    0.002,
    0.003,
    0.004,
    0.006,
    0.008,
    0.01,
    0.015,
    0.02,
    0.03,
    0.05,
    0.075,
    0.1,
    0.2,
    0.5,
    1.0,
    2.5,
)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000)
WINDOW_S = 60.0
WINDOW_MAX = 20_000


class Window:
    """Values of the last WINDOW_S seconds, at most WINDOW_MAX of them."""

    def __init__(self) -> None:
        self._values: deque[tuple[float, float]] = deque(maxlen=WINDOW_MAX)

    def add(self, now: float, value: float) -> None:
        self._values.append((now, value))

    def sketch(self, now: float) -> Sketch:
        values = self._values
        while values and values[0][0] < now - WINDOW_S:
            values.popleft()
        return Sketch.of([value for _, value in values])


class Metrics:
    """One per front."""

    def __init__(self, model_name: str) -> None:
        self.model_name = model_name
        self.log_requests = True
        self.tracer: Tracer | None = None
        self.requests = 0
        self.streams_open = 0
        self.finished_by: Counter[str] = Counter()
        self.http: Counter[tuple[str, int]] = Counter()
        self.prompt_tokens = self.generation_tokens = self.cached_tokens = self.retractions = 0
        self.histograms = {
            "time_to_first_token_seconds": Histogram.empty(_SECONDS),
            "inter_token_latency_seconds": Histogram.empty(_GAPS),
            "request_time_per_output_token_seconds": Histogram.empty(_GAPS),
            "e2e_request_latency_seconds": Histogram.empty(_SECONDS),
            "request_queue_time_seconds": Histogram.empty(_SECONDS),
            "request_prefill_time_seconds": Histogram.empty(_SECONDS),
            "request_decode_time_seconds": Histogram.empty(_SECONDS),
            "request_prompt_tokens": Histogram.empty(_TOKENS),
            "request_generation_tokens": Histogram.empty(_TOKENS),
        }
        self._gaps = self.histograms["inter_token_latency_seconds"]
        self.windows = {name: Window() for name in ("ttft_ms", "tpot_ms", "queue_ms", "e2e_ms")}

    # What happens, as it happens.

    def on_tokens(self, sequence: Sequence, count: int, now: float) -> None:
        """Hot: once a step and sequence."""
        if sequence.first_token == 0.0:
            sequence.first_token = now
            wait = now - sequence.arrived
            self.histograms["time_to_first_token_seconds"].observe(wait)
            self.windows["ttft_ms"].add(now, wait * 1e3)
        else:
            self._gaps.observe((now - sequence.last_token) / count, count)
        sequence.last_token = now

    def on_ended(self, sequence: Sequence) -> None:
        assert sequence.ending is not None
        self._count(sequence, sequence.ending.reason)

    def on_failed(self, sequence: Sequence, error: ApiError) -> None:
        refused = error.status in (400, 429, 503)
        self._count(sequence, "refused" if refused else "error", error)

    def on_aborted(self, sequence: Sequence) -> None:
        self._count(sequence, "abort")

    def latency(self) -> dict[str, Sketch]:
        """Of each window, in milliseconds."""
        now = monotonic()
        return {name: window.sketch(now) for name, window in self.windows.items()}

    def figures(self) -> FrontFigures:
        return FrontFigures(
            requests=self.requests,
            streams_open=self.streams_open,
            prompt_tokens=self.prompt_tokens,
            generation_tokens=self.generation_tokens,
            cached_tokens=self.cached_tokens,
            finished_by=dict(self.finished_by),
            http=[(route, status, count) for (route, status), count in self.http.items()],
            histograms=self.histograms,
        )

    def _count(self, sequence: Sequence, reason: str, error: ApiError | None = None) -> None:
        now = monotonic()
        self.finished_by[reason] += 1
        prompt, output = len(sequence.prompt), sequence.count
        total = now - sequence.arrived if sequence.arrived else 0.0
        if output:
            self.prompt_tokens += prompt
            self.generation_tokens += output
            self.cached_tokens += sequence.cached_tokens
        done = sequence.finished
        waited = done.queue_s if done is not None else max(0.0, sequence.started - sequence.arrived)
        decode = sequence.last_token - sequence.first_token
        if done is not None:
            self.retractions += done.retractions
        if output and reason in ("stop", "length", "tool_calls"):
            observe = self.histograms
            observe["e2e_request_latency_seconds"].observe(total)
            observe["request_queue_time_seconds"].observe(waited)
            observe["request_prefill_time_seconds"].observe(max(0.0, sequence.first_token - sequence.started))
            observe["request_decode_time_seconds"].observe(decode)
            observe["request_prompt_tokens"].observe(prompt)
            observe["request_generation_tokens"].observe(output)
            self.windows["e2e_ms"].add(now, total * 1e3)
            self.windows["queue_ms"].add(now, waited * 1e3)
            if output > 1:
                observe["request_time_per_output_token_seconds"].observe(decode / (output - 1))
                self.windows["tpot_ms"].add(now, decode / (output - 1) * 1e3)
        if self.tracer is not None:
            self.tracer.record(sequence, reason, now)
        if self.log_requests and request_log.isEnabledFor(logging.INFO):
            request_log.info("%s", _line(sequence, reason, total, waited, decode, error))


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)


def _line(sequence: Sequence, reason: str, total: float, waited: float, decode: float, error: ApiError | None) -> str:
    done = sequence.finished
    prompt, output = len(sequence.prompt), sequence.count
    line = {
        "request": sequence.job.public_id,
        "choice": sequence.index,
        "route": sequence.job.route,
        "engine": sequence.engine.engine if sequence.engine is not None else None,
        "prompt_tokens": prompt,
        "cached_tokens": sequence.cached_tokens,
        "output_tokens": output,
        "hit_rate": round(sequence.cached_tokens / prompt, 4) if prompt else 0.0,
        "queue_ms": _ms(waited),
        "prefill_ms": _ms(max(0.0, sequence.first_token - sequence.started)) if sequence.first_token else None,
        "ttft_ms": _ms(sequence.first_token - sequence.arrived) if sequence.first_token else None,
        "total_ms": _ms(total),
        "retractions": done.retractions if done else 0,
        "retracted_ms": _ms(done.retracted_s) if done else 0.0,
        "decode_tok_s": round((output - 1) / decode, 2) if output > 1 and decode > 0 else None,
        "finish_reason": reason,
    }
    if sequence.job.trace is not None:
        line["trace_id"] = sequence.job.trace.trace_id
    if error is not None:
        line["error"] = error.code or error.type
    return msgspec.json.encode(line).decode()
