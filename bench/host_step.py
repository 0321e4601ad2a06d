"""What a greedy decode step costs the host, phase by phase, with no GPU: the loop's own code over a stub of a device.

    python -m tsd.bench.host_step [--rows 1 32 256] [--steps 2000] [--step-us 600] [--profile]

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
from tsd.engine.executor.greedy import GreedySteps
from tsd.engine.executor.rows import Rows
from tsd.engine.executor.staging import Staging
from tsd.engine.executor.wake import Landing
from tsd.engine.grammars import GrammarIntake
from tsd.engine.loop import StepLoop
from tsd.engine.protocol import SamplingParams, Submit
from tsd.engine.requests import LiveRequests
from tsd.kernels.step.exchange import ANSWER
from tsd.scheduler.core import Scheduler
from tsd.scheduler.types import ExecutionPlan, SchedulerConfig

VOCABULARY = 1000
PAGE = 64
PROMPT = 8
_CLOCK = (
    "import os,sys,time\n"
    "fd,wait=int(sys.argv[1]),float(sys.argv[2])\n"
    "due=0.0\n"
    "while os.read(0,1):\n"
    " due=max(due,time.monotonic())+wait\n"
    " time.sleep(max(0.0,due-time.monotonic()))\n"
    " os.write(fd,(1).to_bytes(8,'little'))\n"
)
_SINK = "import socket,sys\ns=socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\nwhile s.recv(65536): pass"


class StubLanding(Landing):
    """Stands where graphs are launched and what they do is waited for: every step's tokens are 7.

    With `step_us`, another process says that the step has ended, so long after it was launched; the processor's caches
    are then as cold as after a real one.
    """

    def __init__(self, staging: Staging, fd: int, step_us: int) -> None:
        self.staging = staging
        self._answers = staging.exchange.answers.numpy()
        self._blocks = staging.exchange.blocks.numpy()
        self._fd = fd
        self._clock: subprocess.Popen[bytes] | None = None
        if step_us:
            program = [sys.executable, "-S", "-c", _CLOCK, str(fd), str(step_us / 1e6)]
            self._clock = subprocess.Popen(program, stdin=subprocess.PIPE, pass_fds=(fd,), bufsize=0)

    def launch(self, graph: int) -> int:
        return 0

    def signal(self) -> int:
        serial = self.staging.blocks.serial
        answer, block = self._answers[serial % 4], self._blocks[serial % 4]
        answer[0] = serial
        answer[ANSWER : ANSWER + (block[1] & 0xFFFF or 1)] = 7
        if self._clock is not None:
            assert self._clock.stdin is not None
            self._clock.stdin.write(b"x")
        else:
            os.eventfd_write(self._fd, 1)
        return 0

    def close(self) -> None:
        if self._clock is not None:
            self._clock.kill()
            self._clock.wait()


class StubExecutor(CudaExecutor):
    """The GPU executor without a GPU. Prefill rows draw at once."""

    def __init__(self, rows: int, max_model_len: int, step_us: int) -> None:
        self.rows = Rows(rows, max_model_len, PAGE, VOCABULARY)
        self.landed_fd = os.eventfd(0, os.EFD_NONBLOCK)
        self._staging = Staging(rows + rows % 2, self.rows.page_table.shape[1], torch.device("cpu"))
        self.stub = self._landing = StubLanding(self._staging, self.landed_fd, step_us)
        self._greedy = GreedySteps(
            self._staging.blocks, self._landing, self.rows.sampling.likeliest, self.rows.page_table
        )
        self._greedy.serve({rows: 1})
        self._flights = deque()
        self._moved = deque()
        self._mover = None
        self._owed = 0
        self._attached = True
        self._clock_offset = 0.0

    def launch(self, plan: ExecutionPlan) -> None:
        if plan.num_decode == plan.num_rows and not plan.admitted:
            super().launch(plan)
            return
        self.rows.apply(plan)
        chosen = np.flatnonzero(plan.samples)
        assert len(chosen) == plan.num_rows
        self._staging.blocks.stage(plan.slots, plan.starts)
        if len(plan.table_slots):
            self._staging.blocks.stage_pages(plan.table_slots, plan.table_index, plan.table_pages)
        self._flights.append(Flight(plan, self._staging.blocks.send(), chosen))
        self._landing.signal()


class Phases:
    """Takes the loop's trace."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)

    def add(self, track: int, name: str, began: float, seconds: float, **facts: int) -> None:
        self.seconds[name].append(seconds)


async def run(rows: int, steps: int, profile: bool, step_us: int) -> dict[str, float]:
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
    executor = StubExecutor(max(rows, 2), length + 8, step_us)
    phases = Phases()
    loop = StepLoop(scheduler, executor, requests, faults.append)
    opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "engine")
        server = await transport.listen(path, lambda *_: None, lambda *_: None, opened.set_result)
        sink = subprocess.Popen([sys.executable, "-S", "-c", _SINK, path])  # noqa: ASYNC220 (before anything is timed)
        channel = await opened
        requests.open(channel)
        prompt = np.arange(PROMPT, dtype="<i4").tobytes()
        for number in range(rows):
            submit = Submit(number, prompt, steps + 150, SamplingParams(temperature=0.0), cache_salt=str(number))
            requests.submit(channel, submit, loop.clock())
        loop.kick()
        while scheduler.counters["steps"] < 100:  # noqa: ASYNC110 (nobody tells of steps)
            await asyncio.sleep(0.001)
        loop.trace = phases  # type: ignore[assignment]
        profiler = cProfile.Profile() if profile else None
        gc.collect()
        gc.disable()
        if profiler is not None:
            profiler.enable()
        before, began = scheduler.counters["steps"], loop.clock()
        while scheduler.counters["steps"] < steps and not faults:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        whole = (loop.clock() - began) / (scheduler.counters["steps"] - before)
        if profiler is not None:
            profiler.disable()
            pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
        loop.close()
        executor.stub.close()
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
    parser.add_argument("--step-us", type=int, default=0, help="what a step takes the device; 0: nothing")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    print("rows    plan  launch advance publish | a whole turn of the loop")
    for rows in options.rows:
        found = uvloop.run(run(rows, options.steps, options.profile, options.step_us))
        print(
            f"{rows:4} " + " ".join(f"{found[name]:7.1f}" for name in ("plan", "launch", "advance", "publish")), end=""
        )
        print(f" | {found['turn']:7.1f}", flush=True)


if __name__ == "__main__":
    main()
