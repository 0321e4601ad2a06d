"""How long a front's loop stands still while it takes huge prompts: `tsd bench stall`.

Front, engine and client are three processes, as they are in use. The front's own loop looks at the clock every
millisecond; what lies between two looks is the stall that every other stream would have seen.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sys
import tempfile
import time
from typing import Any, NamedTuple

import uvloop

from tsd.api.options import EngineEndpoint, ServerOptions
from tsd.bench.front import Engine, http_request
from tsd.engine.protocol import Finished, Started, StepOutput, Submit, ToEngine
from tsd.engine.transport import Channel

TEXT = "hello world, this is code: foo(bar)\n"
LOOK_S = 0.001


class Stall(NamedTuple):
    kind: str
    prompt_bytes: int
    status: int
    tokens: int
    seconds: float
    worst_ms: float
    over_10_ms: int


class AnsweringEngine(Engine):
    """Ends each request at once with one token."""

    tokens = 0

    def _on_message(self, channel: Channel[Any], message: ToEngine) -> None:
        if not isinstance(message, Submit):
            return
        self.tokens = len(message.prompt) // 4
        started = Started(message.id, self.tokens, 0, 0.0)
        finished = Finished(message.id, "length", self.tokens, 0, 1)
        one = (message.id).to_bytes(8, "little")
        channel.send(StepOutput(1, one, (5).to_bytes(4, "little"), [started], [finished]))


def bodies(megabytes: float) -> dict[str, tuple[str, dict[str, Any]]]:
    text = TEXT * int(megabytes * 1e6 / len(TEXT))
    # A rendered prompt is bounded at 4 MiB.
    shorter = text[: int(3.9 * 2**20)]
    turn = shorter[: len(shorter) // 101]
    turns = [{"role": ("user", "assistant")[i % 2], "content": turn} for i in range(101)]
    chat = "/v1/chat/completions"
    return {
        "completion": ("/v1/completions", {"prompt": text, "max_tokens": 1}),
        "chat, one message": (chat, {"messages": [{"role": "user", "content": shorter}], "max_tokens": 1}),
        "chat, 101 messages": (chat, {"messages": turns, "max_tokens": 1}),
        "token ids": ("/v1/completions", {"prompt": [1000 + i % 9000 for i in range(len(text) // 5)], "max_tokens": 1}),
    }


async def measure(model: str, megabytes: float) -> list[Stall]:
    with tempfile.TemporaryDirectory(prefix="tsd-bench") as folder:
        engine = AnsweringEngine(max_model_len=1 << 24)
        listening = await engine.listen(f"{folder}/engine.sock")
        front = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tsd.bench.stall", "--serve", folder, "--model", model,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            assert front.stdin is not None and front.stdout is not None
            port = int(await front.stdout.readline())
            found = []
            await _send(port, http_request("/v1/completions", {"prompt": "warm", "max_tokens": 1}))
            for kind, (path, body) in bodies(megabytes).items():
                request = http_request(path, body)
                front.stdin.write(b"\n")
                await front.stdout.readline()
                engine.tokens, began = 0, time.perf_counter()
                status = await _send(port, request)
                seconds = time.perf_counter() - began
                front.stdin.write(b"\n")
                worst, over = json.loads(await front.stdout.readline())
                found.append(Stall(kind, len(request), status, engine.tokens, seconds, worst * 1e3, over))
            return found
        finally:
            front.terminate()
            await front.wait()
            await engine.close()
            listening.close()


async def _send(port: int, request: bytes) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    await writer.drain()
    status = int((await reader.readline()).split()[1])
    writer.close()
    return status


async def _serve(folder: str, model: str) -> int:
    """Prints the port; then for each line on standard input the worst gap since the last, and how many over 10 ms."""
    from tsd.api.serve import Hooks, run

    gaps = [0.0, 0]

    async def look() -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(LOOK_S)
            now = time.perf_counter()
            gaps[0] = max(gaps[0], now - last)
            gaps[1] += now - last > 0.010
            last = now

    def asked() -> None:
        sys.stdin.buffer.readline()
        print(json.dumps(gaps), flush=True)
        gaps[:] = [0.0, 0]

    looking = asyncio.create_task(look())
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), asked)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    options = ServerOptions(model=model, port=port, request_log="", grammars_after_s=None)
    hooks = Hooks(on_ready=lambda: print(port, flush=True))
    try:
        return await run(options, [EngineEndpoint(0, f"{folder}/engine.sock")], listener, hooks)
    finally:
        looking.cancel()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tsd bench stall", description="The front's longest stall at huge prompts.")
    parser.add_argument("--model", required=True, help="GGUF file or folder whose tokenizer is used")
    parser.add_argument("--megabytes", type=float, default=5.0, help="size of a prompt (default 5)")
    parser.add_argument("--serve", default="", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.serve:
        return uvloop.run(_serve(options.serve, options.model))
    print("request                   bytes status    tokens  total s  worst stall ms  >10 ms")
    for stall in uvloop.run(measure(options.model, options.megabytes)):
        print(
            f"{stall.kind:<20} {stall.prompt_bytes:>10,} {stall.status:>6} {stall.tokens:>9,} {stall.seconds:>8.2f} "
            f"{stall.worst_ms:>15.1f} {stall.over_10_ms:>7}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
