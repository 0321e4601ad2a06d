"""The admin snapshot as the console sees it: immutable structs decoded from the stream's JSON.

Owns the schema (version 1) and its tolerance: an absent or null field takes its default (mostly None), an unknown
one is skipped. Knows nothing about sockets, time windows or screens. Counters are cumulative; rates are derived in
`history.py`.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import msgspec

from tsd.console.errors import ForeignServer, GarbageStream

VERSION = 1

PAGE_STATES = ("free", "cached", "active", "shared", "fenced", "in flight")
FREE, CACHED, ACTIVE, SHARED, FENCED, IN_FLIGHT = range(6)


class Struct(msgspec.Struct, frozen=True, kw_only=True):
    """Common options of every snapshot struct."""


class Percentiles(Struct, frozen=True):
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


class Slo(Struct, frozen=True):
    """Targets in milliseconds; None means no target."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None


class Latency(Struct, frozen=True):
    """Percentiles over the last `window_s` seconds."""

    window_s: float | None = None
    ttft_ms: Percentiles = Percentiles()
    tpot_ms: Percentiles = Percentiles()
    queue_ms: Percentiles = Percentiles()
    e2e_ms: Percentiles = Percentiles()


class ServerCounters(Struct, frozen=True):
    requests: int | None = None
    finished: int | None = None
    aborted: int | None = None
    refused: int | None = None
    failed: int | None = None
    streams_open: int | None = None


class Server(Struct, frozen=True):
    name: str | None = None
    version: str | None = None
    model: str | None = None
    state: str | None = None
    url: str | None = None
    slo: Slo = Slo()
    latency: Latency = Latency()
    counters: ServerCounters = ServerCounters()


class Gpu(Struct, frozen=True):
    """Sensors of one GPU: `util` 0..1, memory in bytes, power in watts, clocks in MHz. A missing sensor is None."""

    index: int | None = None
    name: str | None = None
    util: float | None = None
    mem_used: float | None = None
    mem_total: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temp_c: float | None = None
    sm_mhz: float | None = None
    mem_mhz: float | None = None


class EngineCounters(Struct, frozen=True):
    steps: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    generation_tokens: int | None = None
    retractions: int | None = None
    evictions: int | None = None
    aborts: int | None = None
    refusals: int | None = None
    errors: int | None = None


class Batch(Struct, frozen=True):
    """Make-up of the last step."""

    prefill_rows: int | None = None
    decode_rows: int | None = None
    tokens: int | None = None
    padding: int | None = None


class Tier(Struct, frozen=True):
    """Pages of one tier by state. `fenced` and `in_flight` exist only on the device."""

    total: int | None = None
    free: int | None = None
    cached: int | None = None
    active: int | None = None
    shared: int | None = None
    fenced: int | None = None
    in_flight: int | None = None

    @property
    def used(self) -> int | None:
        return None if self.total is None or self.free is None else self.total - self.free

    @property
    def available(self) -> int | None:
        """Pages a new request could take: free ones and cached ones nobody refers to."""
        return None if self.free is None else self.free + (self.cached or 0)


class Tiers(Struct, frozen=True):
    device: Tier = Tier()
    host: Tier | None = None
    disk: Tier | None = None


class Hits(Struct, frozen=True):
    """Cumulative tokens looked up in the prefix index, and found, by tier."""

    queries: int | None = None
    device: int | None = None
    host: int | None = None
    disk: int | None = None


class PageMap(Struct, frozen=True):
    """One byte a bin of `bin_pages` pages: the bin's most used state."""

    bin_pages: int | None = None
    states: str = ""

    def decode(self) -> bytes:
        """The states as bytes; empty when the text is not base64."""
        try:
            return base64.b64decode(self.states, validate=True)
        except (binascii.Error, ValueError):
            return b""


class Prefix(Struct, frozen=True):
    key: str | None = None
    tokens: int | None = None
    refs: int | None = None
    hits: int | None = None
    tier: str | None = None


class RequestRow(msgspec.Struct, frozen=True, array_like=True):
    """One row of the request table, in the order of the wire."""

    id: str = ""
    state: str | None = None
    age_s: float | None = None
    prompt: int | None = None
    cached: int | None = None
    output: int | None = None
    tok_s: float | None = None
    retractions: int | None = None
    priority: int | None = None
    client: str | None = None


class Event(msgspec.Struct, frozen=True, array_like=True):
    """Something that happened to a request or to the engine."""

    time: float = 0.0
    kind: str = ""
    request_id: str | None = None
    cause: str | None = None
    text: str | None = None


class Candidate(Struct, frozen=True):
    name: str = ""
    priority: int | None = None
    lost: str | None = None


class KernelChoice(Struct, frozen=True):
    op: str = ""
    shape: str | None = None
    selected: str | None = None
    why: str | None = None
    us: float | None = None
    candidates: tuple[Candidate, ...] = ()


class Graphs(Struct, frozen=True):
    buckets: tuple[int, ...] = ()
    captured: int | None = None
    compilations_after_ready: int | None = None


class Engine(Struct, frozen=True):
    engine: int = 0
    device: str | None = None
    state: str | None = None
    step: int | None = None
    page_size: int | None = None
    dtype: str | None = None
    phases: dict[str, float] = {}
    running: int | None = None
    waiting: int | None = None
    retracted: int | None = None
    prefetching: int | None = None
    counters: EngineCounters = EngineCounters()
    step_ms: Percentiles = Percentiles()
    host_gap_us: Percentiles = Percentiles()
    batch: Batch = Batch()
    tiers: Tiers = Tiers()
    hits: Hits = Hits()
    page_map: PageMap = PageMap()
    prefixes: tuple[Prefix, ...] = ()
    requests: tuple[RequestRow, ...] = ()
    events: tuple[Event, ...] = ()
    kernels: tuple[KernelChoice, ...] = ()
    graphs: Graphs = Graphs()


class Snapshot(Struct, frozen=True):
    """Everything the server says about itself at `time` (Unix seconds)."""

    version: int
    time: float = 0.0
    uptime_s: float | None = None
    server: Server = Server()
    gpus: tuple[Gpu, ...] = ()
    engines: tuple[Engine, ...] = ()


def drop_nulls(value: Any) -> Any:
    """`value` without the null members of its objects, so that null and absent mean the same. Rows are kept whole."""
    if isinstance(value, dict):
        return {key: drop_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [drop_nulls(item) for item in value if item is not None]
    return value


def decode_snapshot(data: bytes | str) -> Snapshot:
    """The snapshot in one `data:` payload.

    Raises GarbageStream for anything that is no snapshot and ForeignServer for a version this console cannot read.
    """
    try:
        raw = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise GarbageStream(f"the stream is not JSON ({error})") from None
    except RecursionError:
        raise GarbageStream("the stream is not a snapshot (nested too deeply)") from None
    if not isinstance(raw, dict) or "engines" not in raw:
        raise GarbageStream("the stream is JSON, but not a tsd snapshot")
    version = raw.get("version")
    if not isinstance(version, int) or isinstance(version, bool):
        raise ForeignServer("the server is too old for this console: its snapshots carry no version")
    if version != VERSION:
        age = "newer" if version > VERSION else "older"
        raise ForeignServer(f"the server is {age} than this console: it sends snapshots of version {version}, not 1")
    try:
        return msgspec.convert(drop_nulls(raw), Snapshot, strict=False)
    except msgspec.ValidationError as error:
        raise GarbageStream(f"a snapshot does not fit its schema ({error})") from None
