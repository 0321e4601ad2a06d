"""A made-up fleet that behaves like a loaded server: arrivals, prefill, decode, a page pool that runs full, retraction.

Owns the fake source and the fake operator behind `tsd console --demo`, the screenshots and the tests. Everything
follows from the seed and the number of ticks, so two runs show the same picture. Knows nothing about screens.

The story repeats every `CYCLE_S` seconds: calm; a job of long prompts without a shared prefix; a full pool; recovery.
"""

from __future__ import annotations

import asyncio
import base64
import random
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tsd.console.actions import DRAIN, FLUSH, PAUSE, RESUME, Action
from tsd.console.demo_kernels import KERNELS
from tsd.console.errors import ActionFailed, ReadOnly
from tsd.console.link import Link, LinkState
from tsd.console.snapshot import ACTIVE, CACHED, FENCED, FREE, IN_FLIGHT, SHARED, decode_snapshot
from tsd.console.source import Sink

CYCLE_S = 240
STORM = range(90, 150)
MAX_BINS = 4096
PAGE = 16
GIB = 1 << 30
CLIENTS = ("codex", "claude-code", "batch-eval", "ide-plugin", "nightly-swe", "support-bot")
PREFIXES = ("codex system", "claude tools", "swe repo map", "support manual", "eval few-shot", "ide context")
URL = "demo://fleet"


@dataclass
class Request:
    """One made-up request; `luck` is its own number in 0..1 that rounds its pages to bins."""

    id: str
    client: str
    born: float
    prompt: int
    cached: int
    target: int
    priority: int
    luck: float
    state: str = "Submitted"
    done: float = 0.0
    output: int = 0
    speed: float = 0.0
    retractions: int = 0
    admitted: float | None = None
    bins: list[int] = field(default_factory=list)
    timeline: list[list[Any]] = field(default_factory=list)

    def note(self, now: float, what: str, detail: str) -> None:
        self.timeline.append([round(now - self.born, 3), what, detail])


class DemoEngine:
    """One engine: a queue, a running set and a pool of bins of pages."""

    def __init__(self, number: int, pages: int, rows: int, seed: int) -> None:
        self.number = number
        self.pages = pages
        self.rows = rows
        self.rng = random.Random(f"{seed}/{number}")
        self.bin_pages = -(-pages // MAX_BINS)
        self.map = bytearray(-(-pages // self.bin_pages))
        self.owner: dict[int, str] = {}
        self.lru: deque[int] = deque()
        self.passing: list[int] = []
        self.cursor = 0
        self.waiting: deque[Request] = deque()
        self.retracted: deque[Request] = deque()
        self.running: list[Request] = []
        self.events: list[list[Any]] = []
        self.first_tokens: list[tuple[float, float]] = []
        self.finished: list[tuple[float, float]] = []
        self.queued: list[tuple[float, float]] = []
        self.counters = dict.fromkeys(
            (
                "steps",
                "prompt_tokens",
                "cached_tokens",
                "generation_tokens",
                "retractions",
                "evictions",
                "aborts",
                "refusals",
                "errors",
            ),
            0,
        )
        self.hits = dict.fromkeys(("queries", "device", "host", "disk"), 0)
        self.host_used = 0
        self.disk_used = 0
        self.prefixes: list[dict[str, Any]] = []
        self.state = "ready"
        self.step_ms = 9.0
        self.gap_us = 34.0
        self.prefill_rows = 0
        self.tokens = 0
        self.storm = False
        self.prefill_s = 21000.0
        self.ended = 0
        self._prefixes()

    def _prefixes(self) -> None:
        for place, name in enumerate(PREFIXES):
            size = max(1, int(len(self.map) * (0.034 - 0.005 * place)))
            bins = self._take(size)
            for index in bins:
                self.map[index] = SHARED
                self.owner[index] = name
            key = f"{self.rng.getrandbits(128):032x}"
            self.prefixes.append({"key": key, "tokens": size * self.bin_pages * PAGE, "hits": 0, "name": name})

    def _take(self, wanted: int) -> list[int]:
        """Up to `wanted` bins: free ones from the cursor on, then the least recently used cached ones."""
        found: list[int] = []
        index, size = self.cursor, len(self.map)
        for _ in range(size):
            if len(found) == wanted:
                break
            index = (index + 1) % size
            if self.map[index] == FREE:
                found.append(index)
                self.map[index] = ACTIVE
        self.cursor = index
        evicted = 0
        while len(found) < wanted and self.lru:
            index = self.lru.popleft()
            if self.map[index] == CACHED:
                self.map[index] = ACTIVE
                found.append(index)
                evicted += 1
        self.counters["evictions"] += evicted * self.bin_pages
        return found

    def grow(self, request: Request, now: float) -> bool:
        """Gives `request` the bins that its tokens need; False when the pool has none left."""
        tokens = request.done - request.cached + request.output
        wanted = int(max(0.0, tokens) / PAGE / self.bin_pages + request.luck) - len(request.bins)
        if wanted <= 0:
            return True
        bins = self._take(wanted)
        for index in bins:
            self.owner[index] = request.id
        request.bins += bins
        return len(bins) == wanted

    def release(self, request: Request, keep: float, through: int = FREE) -> None:
        """Frees a request's bins; the first `keep` share stays as cache, the others pass through a state first."""
        kept = int(len(request.bins) * keep)
        for place, index in enumerate(request.bins):
            if place < kept:
                self.map[index] = CACHED
                self.lru.append(index)
            else:
                self.map[index] = through
                self.owner.pop(index, None)
                if through != FREE:
                    self.passing.append(index)
        request.bins = []

    def event(self, now: float, kind: str, request: Request | None, cause: str, text: str) -> None:
        self.events.append([round(now, 3), kind, request.id if request else None, cause, text])

    def tick(self, now: float, dt: float) -> None:
        for index in self.passing:
            self.map[index] = FREE
        self.passing = []
        if self.state == "paused":
            return
        self._admit(now)
        self._prefill(now, dt)
        self._decode(now, dt)
        rows = len(self.running)
        self.step_ms = 6.5 + 0.045 * min(rows, self.rows) + (7.0 if self.prefill_rows else 0.0) + self.rng.random()
        self.gap_us = 31 + 6 * self.rng.random() + (4 if self.storm else 0)
        self.counters["steps"] += int(1000 * dt / self.step_ms)

    def _admit(self, now: float) -> None:
        while (self.retracted or self.waiting) and len(self.running) < self.rows:
            again = bool(self.retracted)
            request = self.retracted[0] if again else self.waiting[0]
            room = (self.map.count(FREE) + len(self.lru)) * self.bin_pages * PAGE
            if room < 1.05 * (request.prompt - request.cached):
                return
            (self.retracted if again else self.waiting).popleft()
            if request.admitted is None:
                request.admitted = now
                self.queued.append((now, 1000 * max(0.002, now - request.born - 0.9)))
            if again:
                request.note(now, "resumed", "KV back from the host tier")
                self.host_used = max(0, self.host_used - request.prompt // PAGE)
            else:
                self.hits["queries"] += request.prompt
                self.hits["device"] += int(request.cached * 0.93)
                self.hits["host"] += request.cached - int(request.cached * 0.93)
                self.counters["cached_tokens"] += request.cached
                self.counters["prompt_tokens"] += request.cached
                prefix = self.prefixes[CLIENTS.index(request.client) % len(self.prefixes)]
                prefix["hits"] += 1
                request.note(
                    now, "prefetch", f"{request.cached:,} tokens cached, {request.cached // 14:,} from the host"
                )
            request.state = "Prefilling"
            request.done = max(request.done, request.cached)
            self.running.append(request)

    def _prefill(self, now: float, dt: float) -> None:
        budget = self.prefill_s * dt
        self.prefill_rows = self.tokens = 0
        for request in list(self.running):
            if request.state != "Prefilling" or budget <= 0:
                continue
            chunk = min(budget, request.prompt - request.done)
            budget -= chunk
            request.done += chunk
            self.prefill_rows = min(4, self.prefill_rows + 1)
            self.tokens += int(chunk * self.step_ms / 1000)
            self.counters["prompt_tokens"] += int(chunk)
            request.note(now, "chunk", f"{int(chunk):,} tokens, {int(request.done):,} of {request.prompt:,}")
            if not self.grow(request, now) and not self._retract(now):
                continue
            if request in self.running and request.done >= request.prompt:
                request.state = "Decoding"
                if not request.output:
                    # A tick is a second; the waiting within the tick is made up.
                    self.first_tokens.append((now, 1000 * max(0.09, now - request.born - 0.9 + 0.7 * request.luck)))
                request.note(now, "decode", "first token")

    def _decode(self, now: float, dt: float) -> None:
        decoding = [r for r in self.running if r.state == "Decoding"]
        for request in decoding:
            if request not in self.running:
                continue
            request.speed = (1000 / (self.step_ms + 0.5)) * (0.93 + 0.07 * request.luck)
            made = min(request.target - request.output, max(1, int(request.speed * dt)))
            request.output += made
            self.tokens += 1
            self.counters["generation_tokens"] += made
            if request.output >= request.target:
                self._finish(now, request)
            elif not self.grow(request, now):
                self._retract(now)

    def _finish(self, now: float, request: Request) -> None:
        self.running.remove(request)
        self.release(request, 0.75)
        self.finished.append((now, 1000 * (now - request.born)))
        self.ended += 1
        if self.rng.random() < 0.05:
            self.event(now, "finish", request, "stop", f"{request.output:,} tokens in {now - request.born:.1f} s")

    def _retract(self, now: float) -> bool:
        """Retracts the request that arrived last; the oldest is never a victim."""
        candidates = [r for r in self.running if r.bins]
        if len(candidates) < 2:
            return False
        victim = max(candidates, key=lambda r: r.born)
        self.running.remove(victim)
        pages = len(victim.bins) * self.bin_pages
        self.release(victim, 0.0, IN_FLIGHT)
        victim.state, victim.speed = "Retracted", 0.0
        victim.retractions += 1
        victim.note(now, "retracted", f"{pages:,} pages to the host tier: pool full")
        self.host_used += pages
        self.retracted.append(victim)
        self.counters["retractions"] += 1
        self.event(now, "retraction", victim, "pool full", f"{pages:,} pages moved to the host tier")
        return True

    def abort(self, now: float, request_id: str, cause: str) -> bool:
        for group in (self.running, self.waiting, self.retracted):
            for request in group:
                if request.id == request_id:
                    group.remove(request)
                    self.release(request, 0.0, FENCED)
                    self.counters["aborts"] += 1
                    self.event(now, "abort", request, cause, f"after {request.output:,} tokens")
                    return True
        return False

    def find(self, request_id: str) -> Request | None:
        return next((r for g in (self.running, self.waiting, self.retracted) for r in g if r.id == request_id), None)

    def report(self, now: float, limit: int, kernels: bool) -> dict[str, Any]:
        counts = [self.map.count(state) * self.bin_pages for state in range(6)]
        total = len(self.map) * self.bin_pages
        host_total, disk_total = self.pages * 2, self.pages * 16
        rows = [*self.running, *self.retracted, *self.waiting][:limit]
        decoding = sum(r.state == "Decoding" for r in self.running)
        refs = {
            name: sum(r.client == client for r in self.running) for client, name in zip(CLIENTS, PREFIXES, strict=True)
        }
        events, self.events = self.events, []
        return {
            "engine": self.number,
            "device": f"cuda:{self.number}",
            "state": self.state,
            "step": self.counters["steps"],
            "page_size": PAGE,
            "dtype": "bfloat16",
            "phases": {"weights": 6.2, "graphs": 3.9, "warm-up": 1.1},
            "running": len(self.running),
            "waiting": len(self.waiting),
            "retracted": len(self.retracted),
            "prefetching": min(2, len(self.waiting)),
            "counters": dict(self.counters),
            "step_ms": {"p50": round(self.step_ms, 2), "p99": round(self.step_ms * 1.45, 2)},
            "host_gap_us": {"p50": round(self.gap_us, 1), "p99": round(self.gap_us * 3.1, 1)},
            "batch": {
                "prefill_rows": self.prefill_rows,
                "decode_rows": decoding,
                "tokens": self.tokens,
                "padding": -decoding % 8,
            },
            "tiers": {
                "device": {
                    "total": total,
                    "free": counts[0],
                    "cached": counts[1],
                    "active": counts[2],
                    "shared": counts[3],
                    "fenced": counts[4],
                    "in_flight": counts[5],
                },
                "host": {
                    "total": host_total,
                    "free": max(0, host_total - self.host_used - self.pages // 2),
                    "cached": self.pages // 2,
                    "active": min(self.host_used, host_total - self.pages // 2),
                },
                "disk": {
                    "total": disk_total,
                    "free": disk_total - 5 * self.pages,
                    "cached": 5 * self.pages,
                    "active": 0,
                },
            },
            "hits": dict(self.hits),
            "page_map": {"bin_pages": self.bin_pages, "states": base64.b64encode(self.map).decode()},
            "prefixes": [
                {"key": p["key"], "tokens": p["tokens"], "refs": refs[p["name"]], "hits": p["hits"], "tier": "device"}
                for p in self.prefixes
            ],
            "requests": [
                [
                    r.id,
                    r.state,
                    round(now - r.born, 2),
                    r.prompt,
                    r.cached,
                    r.output,
                    round(r.speed, 1),
                    r.retractions,
                    r.priority,
                    r.client,
                ]
                for r in rows
            ],
            "events": events,
            "kernels": KERNELS if kernels else [],
            "graphs": {"buckets": [1, 2, 4, 8, 16, 32, 64, 96, 128], "captured": 9, "compilations_after_ready": 0},
        }


class DemoFleet:
    """Several engines behind one server. `tick` moves the world by `dt` seconds, `report` is its snapshot."""

    def __init__(
        self, engines: int = 2, requests: int = 96, pages: int = 65536, seed: int = 7, start: float = 1_760_000_000.0
    ) -> None:
        self.rng = random.Random(seed)
        self.start = self.now = start
        self.rows = max(1, requests // engines)
        self.engines = [DemoEngine(number, pages, self.rows, seed) for number in range(engines)]
        self.mean_prompt = min(60_000, max(600, int(1.7 * pages * PAGE / self.rows)))
        for engine in self.engines:
            engine.prefill_s = self.rows * self.mean_prompt / 20
        self.counters = dict.fromkeys(("requests", "finished", "aborted", "refused", "failed"), 0)
        self.state = "ready"
        self.serial = 0
        self.fresh = True

    @property
    def phase(self) -> int:
        return int(self.now - self.start) % CYCLE_S

    def tick(self, dt: float = 1.0) -> None:
        self.now += dt
        storm = self.phase in STORM
        if self.state == "ready":
            for stranger, number in ((False, self._regulars(dt)), (True, self._strangers(dt) if storm else 0)):
                for _ in range(number):
                    self._arrive(stranger)
        for engine in self.engines:
            engine.storm = storm
            engine.tick(self.now, dt)
        if self.rng.random() < 0.03 * dt:
            busy = [r for e in self.engines for r in e.running]
            if busy:
                self.abort(self.rng.choice(busy).id, "client went away")

    def _regulars(self, dt: float) -> int:
        """Arrivals of agents with a shared prefix: enough to keep about two thirds of the rows busy."""
        rows = self.rows * len(self.engines)
        busy = sum(len(e.running) + len(e.waiting) for e in self.engines)
        return self._noisy(dt * max(0.05 * rows, 0.3 * (0.68 * rows - busy)))

    def _strangers(self, dt: float) -> int:
        """Arrivals of a job whose long prompts share nothing: about as much prefill as the engines can do."""
        return self._noisy(dt * 0.03 * self.rows * len(self.engines))

    def _noisy(self, mean: float) -> int:
        return max(0, int(self.rng.gauss(mean, 0.5 * mean**0.5) + self.rng.random()))

    def _arrive(self, stranger: bool) -> None:
        rng = self.rng
        client = "nightly-swe" if stranger else rng.choices(CLIENTS, (5, 5, 2, 3, 1, 2))[0]
        prompt = int(self.mean_prompt * (1.4 if stranger else 0.5) * rng.lognormvariate(0, 0.3)) + 64
        share = 0.04 if stranger else rng.uniform(0.72, 0.95)
        self.serial += 1
        self.counters["requests"] += 1
        request = Request(
            id=f"req-{self.serial:05x}-{rng.getrandbits(16):04x}",
            client=client,
            born=self.now - rng.random(),
            prompt=prompt,
            cached=int(prompt * share) // PAGE * PAGE,
            target=int(rng.lognormvariate(6.1, 0.6)) + 16,
            priority=1 if client == "ide-plugin" else 0,
            luck=rng.random(),
        )
        engine = min(self.engines, key=lambda e: (len(e.waiting) + len(e.running), e.number))
        request.note(request.born, "queued", f"behind {len(engine.waiting)} on engine {engine.number}")
        if len(engine.waiting) > 2 * self.rows:
            self.counters["refused"] += 1
            engine.counters["refusals"] += 1
            engine.event(self.now, "refusal", request, "queue full", "answered 503 with Retry-After")
            return
        engine.waiting.append(request)

    def abort(self, request_id: str, cause: str) -> bool:
        done = any(engine.abort(self.now, request_id, cause) for engine in self.engines)
        self.counters["aborted"] += done
        return done

    def report(self) -> dict[str, Any]:
        since = self.now - 60
        self.counters["finished"] = sum(engine.ended for engine in self.engines)
        for engine in self.engines:
            engine.queued = [item for item in engine.queued if item[0] > since]
            engine.first_tokens = [item for item in engine.first_tokens if item[0] > since]
            engine.finished = [item for item in engine.finished if item[0] > since]
        ttft = sorted(value for e in self.engines for _, value in e.first_tokens)
        queue = sorted(value for e in self.engines for _, value in e.queued)
        e2e = sorted(value for e in self.engines for _, value in e.finished)
        tpot = sorted(e.step_ms * f for e in self.engines for f in (1.02, 1.05, 1.1, 1.3, 1.6))
        kernels, self.fresh = self.fresh, False
        limit = 1000 // len(self.engines)
        return {
            "version": 1,
            "time": round(self.now, 3),
            "uptime_s": round(self.now - self.start + 8040, 1),
            "server": {
                "name": "tsd",
                "version": "0.1.0",
                "model": "Qwen3-8B",
                "state": self.state,
                "url": URL,
                "slo": {"ttft_ms": 1500, "tpot_ms": 40},
                "latency": {
                    "window_s": 60,
                    "ttft_ms": percentiles(ttft),
                    "tpot_ms": percentiles(tpot),
                    "queue_ms": percentiles(queue),
                    "e2e_ms": percentiles(e2e),
                },
                "counters": self.counters | {"streams_open": sum(len(e.running) for e in self.engines)},
            },
            "gpus": [self._gpu(engine) for engine in self.engines],
            "engines": [engine.report(self.now, limit, kernels) for engine in self.engines],
        }

    def _gpu(self, engine: DemoEngine) -> dict[str, Any]:
        load = min(1.0, 0.35 + 0.62 * len(engine.running) / self.rows)
        jitter = self.rng.random()
        return {
            "index": engine.number,
            "name": "NVIDIA H200",
            "util": round(load - 0.03 * jitter, 3),
            "mem_used": int((121.5 + 0.4 * jitter) * GIB),
            "mem_total": int(140.4 * GIB),
            "power_w": round(240 + 420 * load + 15 * jitter),
            "power_limit_w": 700,
            "temp_c": round(41 + 24 * load + jitter),
            "sm_mhz": 1980 - round(60 * load),
            "mem_mhz": 3201,
        }

    def encode(self) -> bytes:
        return msgspec.json.encode(self.report())


def percentiles(values: list[float]) -> dict[str, float]:
    """p50, p95, p99 of sorted values; nothing of none."""
    if not values:
        return {}
    return {f"p{p}": round(values[min(len(values) - 1, int(len(values) * p / 100))], 2) for p in (50, 95, 99)}


class DemoSource:
    """Ticks a fleet once an interval. `warm_s` seconds of its past are lived before the first snapshot."""

    def __init__(self, fleet: DemoFleet, interval_s: float = 1.0, warm_s: int = 0) -> None:
        self.fleet = fleet
        self.interval_s = interval_s
        self.warm_s = warm_s

    async def run(self, sink: Sink) -> None:
        sink.link_changed(Link(LinkState.LIVE, URL, "demo", time.time()))
        for _ in range(self.warm_s):
            self.step(sink, 1.0)
        while True:
            self.step(sink, self.interval_s)
            await asyncio.sleep(self.interval_s)

    def step(self, sink: Sink, dt: float) -> None:
        self.fleet.tick(dt)
        raw = self.fleet.encode()
        sink.snapshot_arrived(decode_snapshot(raw), raw)


class DemoOperator:
    """Acts on a fleet as `actions.Operator` acts on a server."""

    def __init__(self, fleet: DemoFleet, read_only: bool = False) -> None:
        self.fleet = fleet
        self.read_only = read_only
        self.done: list[tuple[str, dict[str, str]]] = []

    async def act(self, action: Action, body: dict[str, str] | None = None) -> str:
        if self.read_only:
            raise ReadOnly("this console is read-only: start it without --read-only to act")
        self.done.append((action.name, body or {}))
        fleet = self.fleet
        if action is PAUSE or action is RESUME or action is DRAIN:
            fleet.state = {"pause": "paused", "resume": "ready", "drain": "draining"}[action.name]
            for engine in fleet.engines:
                engine.state = fleet.state
                engine.event(fleet.now, action.name, None, "operator", f"the server is {fleet.state}")
        elif action is FLUSH:
            for engine in fleet.engines:
                for index in engine.lru:
                    if engine.map[index] == CACHED:
                        engine.map[index] = FREE
                engine.lru.clear()
                engine.event(fleet.now, "flush", None, "operator", "cached pages dropped")
        elif body and "request_id" in body and not fleet.abort(body["request_id"], "operator"):
            raise ActionFailed(f"no request {body['request_id']}: it has ended")
        return "done"

    async def request_detail(self, request_id: str) -> dict[str, Any]:
        for engine in self.fleet.engines:
            request = engine.find(request_id)
            if request is not None:
                return {
                    "id": request_id,
                    "state": request.state,
                    "client": request.client,
                    "timeline": request.timeline,
                }
        raise ActionFailed(f"no request {request_id}: it has ended")

    async def page_detail(self, engine: int, page_bin: int) -> dict[str, Any]:
        found = self.fleet.engines[engine]
        if page_bin >= len(found.map):
            raise ActionFailed(f"engine {engine} has no bin {page_bin}")
        owner = found.owner.get(page_bin)
        key = random.Random(f"{engine}/{page_bin}")
        first = page_bin * found.bin_pages
        state = ("free", "cached", "active", "shared", "fenced", "in flight")[found.map[page_bin]]
        pages = [
            {
                "page": first + offset,
                "state": state,
                "owner": owner if state in ("active", "shared") else None,
                "key": f"{key.getrandbits(128):032x}" if state in ("cached", "shared") else None,
                "refs": 1 if state == "active" else 9 if state == "shared" else 0,
            }
            for offset in range(min(found.bin_pages, 64))
        ]
        return {"engine": engine, "bin": page_bin, "pages": pages}

    async def kernels(self) -> list[Any]:
        return [{"engine": e.number, "kernels": KERNELS} for e in self.fleet.engines]


def lived(fleet: DemoFleet, seconds: int, sink: Sink) -> None:
    """Lives `seconds` of a fleet's life at once, into a sink: for screenshots and tests."""
    source = DemoSource(fleet)
    sink.link_changed(Link(LinkState.LIVE, URL, "demo", fleet.now))
    for _ in range(seconds):
        source.step(sink, 1.0)
