"""What a greedy decode step costs the host, phase by phase, with no GPU: the loop's own code over a device that is not there.

    python -m tsd.bench.host_step [--rows 1 32 256] [--steps 2000] [--profile]

The scheduler, the loop, the GPU executor's code and the channel to the front are the real ones; graphs and driver calls
are stubs that answer each block at once. Prints medians in microseconds, as `tsd start --trace` measures them, so that
what is left of a trace's `launch` is the driver's.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import os
import pstats
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict, deque
from pathlib import Path
from typing import Any

import numpy as np
import torch
import uvloop

from tsd.engine import transport
from tsd.engine.executor.cuda import CudaExecutor
from tsd.engine.executor.flight import Flight
from tsd.engine.executor.rows import Rows
from tsd.engine.executor.staging import Staging
from tsd.engine.grammars import GrammarIntake
from tsd.engine.loop import StepLoop
from tsd.engine.protocol import SamplingParams, Submit
from tsd.engine.requests import LiveRequests
from tsd.kernels.step.exchange import HEAD
from tsd.scheduler.core import Scheduler
from tsd.scheduler.types import ExecutionPlan, SchedulerConfig

VOCABULARY = 1000
PAGE = 64
PROMPT = 8
_SINK = "import socket,sys\ns=socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\nwhile s.recv(65536): pass"


class StubDevice:
    """Stands where graphs are launched and what they do is waited for: every step's tokens are 7."""

    def __init__(self, staging: Staging, fd: int) -> None:
        self.staging = staging
        self.padded_rows = 0
        self._answers = staging.exchange.answers.numpy()
        self._fd = fd
        self._rows = 0

    # As `DecodeSteps`.
    def bucket(self, rows: int) -> int:
        return rows

    def send(self, plan: ExecutionPlan, rows: bool) -> int:
        self._rows = plan.num_rows
        return self.staging.send(plan, rows)

    def run_greedy(self, rows: int) -> None:
        pass

    # As `Landing`.
    def signal(self) -> None:
        serial = self.staging.blocks.serial
        answer = self._answers[serial % 4]
        answer[0] = serial
        answer[HEAD : HEAD + self._rows] = 7
        os.eventfd_write(self._fd, 1)


class StubExecutor(CudaExecutor):
    """The GPU executor without a GPU. Prefill rows draw at once."""

    def __init__(self, rows: int, max_model_len: int) -> None:
        self.rows = Rows(rows, max_model_len, PAGE, VOCABULARY)
        self.landed_fd = os.eventfd(0, os.EFD_NONBLOCK)
        self._staging = Staging(rows + rows % 2, self.rows.page_table.shape[1], torch.device("cpu"))
        self.stub: Any = StubDevice(self._staging, self.landed_fd)
        self.decode = self._landing = self.stub
        self._flights = deque()
        self._moved = deque()
        self._mover = None
        self._owed = 0
        self._attached = True
        self._clock_offset = 0.0

    def launch(self, plan: ExecutionPlan) -> None:
        if plan.num_decode == plan.num_rows:
            super().launch(plan)
            return
        self.rows.apply(plan)
        self._flights.append(Flight(plan, self.stub.send(plan, rows=False), np.flatnonzero(plan.samples)))
        self.stub.signal()


class Phases:
    """Takes the loop's trace."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)

    def add(self, track: int, name: str, began: float, seconds: float, **facts: int) -> None:
        self.seconds[name].append(seconds)


async def run(rows: int, steps: int, profile: bool) -> dict[str, float]:
    """Medians of each phase over `steps` steps of `rows` rows, and of a whole turn of the loop."""
    length = PROMPT + steps + 200
    scheduler = Scheduler(
        SchedulerConfig(
            max_num_seqs=max(rows, 2),
            max_model_len=length + 8,
            num_pages=rows * (length // PAGE + 2) + 8,
            page_size=PAGE,
            max_in_flight=2,
            chunked_prefill_size=4096,
        )
    )
    faults: list[BaseException] = []
    requests = LiveRequests(scheduler, VOCABULARY, GrammarIntake(VOCABULARY), lambda: None)
    executor = StubExecutor(max(rows, 2), length + 8)
    phases = Phases()
    loop = StepLoop(scheduler, executor, requests, faults.append)
    opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "engine")
        server = await transport.listen(path, lambda *_: None, lambda *_: None, opened.set_result)
        sink = subprocess.Popen([sys.executable, "-S", "-c", _SINK, path])
        channel = await opened
        requests.open(channel)
        prompt = np.arange(PROMPT, dtype="<i4").tobytes()
        for number in range(rows):
            submit = Submit(number, prompt, steps + 150, SamplingParams(temperature=0.0), cache_salt=str(number))
            requests.submit(channel, submit, loop.clock())
        loop.kick()
        while scheduler.counters["steps"] < 100:
            await asyncio.sleep(0.001)
        loop.trace = phases  # type: ignore[assignment]
        profiler = cProfile.Profile() if profile else None
        gc.collect()
        gc.disable()
        if profiler is not None:
            profiler.enable()
        before, began = scheduler.counters["steps"], loop.clock()
        while scheduler.counters["steps"] < steps and not faults:
            await asyncio.sleep(0.02)
        whole = (loop.clock() - began) / (scheduler.counters["steps"] - before)
        if profiler is not None:
            profiler.disable()
            pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
        loop.close()
        sink.kill()
        sink.wait()
        server.close()
    if faults:
        raise faults[0]
    found = {name: 1e6 * statistics.median(phases.seconds[name]) for name in ("plan", "launch", "advance", "publish")}
    return found | {"turn": 1e6 * whole}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    print("rows    plan  launch advance publish | a whole turn of the loop")
    for rows in options.rows:
        found = uvloop.run(run(rows, options.steps, options.profile))
        print(f"{rows:4} " + " ".join(f"{found[name]:7.1f}" for name in ("plan", "launch", "advance", "publish")), end="")
        print(f" | {found['turn']:7.1f}", flush=True)


if __name__ == "__main__":
    main()
