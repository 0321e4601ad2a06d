"""One engine of the made-up fleet: admission, prefill, decode, a page pool that runs full, retraction.

Everything follows from the seed and the ticks. Reports what a real engine reports; knows nothing about screens, nor
about the other engines.
"""

from __future__ import annotations

import base64
import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from tsd.console.demo_kernels import KERNELS
from tsd.console.snapshot import ACTIVE, CACHED, FENCED, FREE, IN_FLIGHT, SHARED

MAX_BINS = 4096
PAGE = 16
CLIENTS = ("codex", "claude-code", "batch-eval", "ide-plugin", "nightly-swe", "support-bot")
PREFIXES = ("codex system", "claude tools", "swe repo map", "support manual", "eval few-shot", "ide context")


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
