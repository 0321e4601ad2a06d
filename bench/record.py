"""What one request did: the raw samples from which every figure is computed.

Times are `perf_counter` seconds, one clock for all processes of a machine; `chunk_times` are relative to `start`.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec


class RequestRecord(msgspec.Struct, kw_only=True):
    """One request, finished or failed. A failed one keeps what had arrived.

    `start` is taken just before the request is sent (or the connection for it is opened). `chunk_times` holds the
    arrival of each chunk that carried output, `chunk_tokens` how many tokens it carried (empty when the server does
    not say). `end` is the arrival of the last byte, or the moment of the failure.
    """

    session: int
    turn: int
    worker: int = 0
    scheduled: float | None = None
    start: float = 0.0
    end: float = 0.0
    requested_input: int = 0
    requested_output: int = 0
    input_tokens: int | None = None
    cached_tokens: int | None = None
    usage_output: int | None = None
    chunk_times: list[float] = msgspec.field(default_factory=list)
    chunk_tokens: list[int] = msgspec.field(default_factory=list)
    finish_reason: str | None = None
    status: int = 0
    error: str = ""
    text: str | None = None

    @property
    def ok(self) -> bool:
        return not self.error

    @property
    def prompt_tokens(self) -> int:
        """By the server's usage; else what we meant to send."""
        return self.input_tokens if self.input_tokens is not None else self.requested_input

    @property
    def output_tokens(self) -> int:
        """By the server's usage; else by its per-chunk counts; else one token a chunk."""
        if self.usage_output is not None:
            return self.usage_output
        return sum(self.chunk_tokens) if self.chunk_tokens else len(self.chunk_times)

    @property
    def ttft(self) -> float | None:
        """Seconds from send to the first chunk with output."""
        return self.chunk_times[0] if self.chunk_times else None

    @property
    def tpot(self) -> float | None:
        """(last - first) / (tokens - 1), seconds; None below two tokens."""
        tokens = self.output_tokens
        if tokens < 2 or not self.chunk_times:
            return None
        return (self.chunk_times[-1] - self.chunk_times[0]) / (tokens - 1)

    @property
    def itls(self) -> list[float]:
        """Gaps between consecutive chunks with output, seconds."""
        times = self.chunk_times
        return [later - earlier for earlier, later in pairwise(times)]

    @property
    def e2el(self) -> float | None:
        """Seconds from send to the last chunk with output."""
        return self.chunk_times[-1] if self.chunk_times else None
