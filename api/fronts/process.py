"""A member front's process: `python -m tsd.api.fronts.process`, with its order as one JSON line on standard input.

The order names the parent, the options, the engines, and the descriptor of the listening socket that it inherits.
It stops when the lead says so or is gone; signals to it are let pass, because a service manager may send them to
every process of a group while streams drain.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys

import msgspec
import uvloop

from tsd.api.options import EngineEndpoint, ServerOptions
from tsd.api.serve import Hooks, run
from tsd.engine import life


class Order(msgspec.Struct):
    parent: int
    options: ServerOptions
    engines: list[EngineEndpoint]
    listen_fd: int


async def _run(order: Order) -> int:
    stop = asyncio.Event()
    life.watch_life_line(sys.stdin.fileno(), stop.set)
    with socket.socket(fileno=order.listen_fd) as listener:
        listener.setblocking(False)
        return await run(order.options, order.engines, listener, Hooks(stop=stop))


def main() -> int:
    # The parent is whoever wrote the order; it is named there because it may be gone by now.
    line = sys.stdin.buffer.readline()
    if not line:
        return 1
    order = msgspec.json.decode(line, type=Order)
    life.die_with_parent(order.parent)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    name = f"front {order.options.front}"
    logging.basicConfig(format=f"%(asctime)s {name} %(levelname)s %(message)s")
    logging.getLogger("tsd").setLevel(order.options.log_level.upper())
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return uvloop.run(_run(order))


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # A thread may sit in a long tokenization; the process ends without waiting for it.
    os._exit(code)
