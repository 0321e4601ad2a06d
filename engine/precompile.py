"""The process that compiles an engine's kernels while the engine loads; see `compile_command.py` for what it does.

Owns that process. Knows nothing of torch, so that it can be started before torch is imported.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib.util import find_spec

import msgspec

from tsd.engine import compiled
from tsd.engine.config import EngineConfig
from tsd.kernels.compiling import read_triton

Report = Callable[[str, str, float | None], None]


class Precompile:
    """Started at once, unless all is compiled already. It ends with the thread that made it, at the latest."""

    def __init__(self, config: EngineConfig) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        if compiled.is_complete(config):
            return
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tsd.engine.compile_command"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONSAFEPATH": "1"},
        )
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode({"config": config, "parent": os.getpid()}))
        self._process.stdin.close()

    def wait(self, report: Report) -> bool:
        """Returns when it has ended: whether every kernel is compiled. Progress goes to `report`."""
        if self._process is None:
            return True
        assert self._process.stdout is not None
        done = of = 0
        with self._process.stdout as lines:
            for line in lines:
                message = json.loads(line)
                done, of = message["done"], message["of"]
                report("kernels", "", done / max(1, of))
        if self._process.wait():
            return False
        report("kernels", f"{of} kernels are compiled", 1.0)
        return True


def start(config: EngineConfig) -> Precompile | None:
    """None where nothing is compiled: on a CPU, or without Triton."""
    if not config.device.startswith("cuda") or find_spec("triton") is None:
        return None
    threading.Thread(target=_begin, args=(config,), name="tsd-begin", daemon=True).start()
    return Precompile(config)


def _begin(config: EngineConfig) -> None:
    """What can be done while torch is imported, since it leaves Python alone: the device's context, Triton's files.

    torch finds the context and makes no other. What fails here is left to those who need it, who say so in words.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    device, context = ctypes.c_int(), ctypes.c_void_p()
    index = int(config.device.partition(":")[2] or 0)
    if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), index) == 0:
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    read_triton()
