"""A made-up fleet that behaves like a loaded server, for `tsd console --demo`, the screenshots and the tests.

Owns the arrivals and the whole fleet's report; an engine's life is `demo_engine`'s. Everything follows from the seed
and the number of ticks, so two runs show the same picture. Knows nothing about screens.

The story repeats every `CYCLE_S` seconds: calm; a job of long prompts without a shared prefix; a full pool; recovery.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec

from tsd.console.demo_engine import CLIENTS, PAGE, DemoEngine, Request

CYCLE_S = 240
STORM = range(90, 150)
GIB = 1 << 30
URL = "demo://fleet"


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
