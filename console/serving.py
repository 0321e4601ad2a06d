"""Runs the fronts and their engines together until one of them ends. The first front runs in this process."""

from __future__ import annotations

import asyncio
import difflib
import secrets
import socket
import sys
from collections.abc import Sequence

import msgspec

from tsd.api.limits import Limits
from tsd.api.options import EngineEndpoint, ServerOptions
from tsd.console.display import StartDisplay
from tsd.console.errors import UsageError
from tsd.console.options import Settings
from tsd.engine.config import EngineConfig
from tsd.engine.protocol import Progress, Ready
from tsd.engine.supervisor import ChildExit, ChildProcess, Supervisor

EXIT_ENGINE = 1


def server_options(settings: Settings, model: str, address: tuple[str, int]) -> ServerOptions:
    """The front's part of the settings."""
    value = {key: setting.value for key, setting in settings.items()}
    return ServerOptions(
        model=model,
        host=address[0],
        port=address[1],
        served_names=tuple(name for name in value["served_model_name"].split(",") if name),
        tokenizer=value["tokenizer"],
        chat_template=value["chat_template"],
        api_keys=value["api_key"],
        admin_key=value["admin_key"],
        salt_per_key=value["cache_salt_per_key"],
        reasoning_parser=value["reasoning_parser"],
        tool_call_parser=value["tool_call_parser"],
        request_timeout_s=value["request_timeout"],
        drain_s=value["drain_timeout"],
        log_level=value["log_level"],
        request_log="-" if value["log_requests"] else "",
        otlp_traces_endpoint=value["otlp_traces_endpoint"],
        cors_origins=value["cors_origin"],
        tls_certificate=value["tls_certfile"],
        tls_key=value["tls_keyfile"],
        limits=limits(value["limit"], value["max_queued_requests"], value["max_queued_tokens"]),
        fronts=value["api_workers"],
        routing_secret=secrets.token_hex(16),
    )


def options_of_front(options: ServerOptions, number: int, folder: str) -> ServerOptions:
    """One front's part: memory bounds are shared out, queue bounds are the engines' to count."""
    share = msgspec.structs.replace(options.limits, bodies_bytes=options.limits.bodies_bytes // options.fronts)
    return msgspec.structs.replace(options, front=number, runtime_dir=folder, limits=share, handle_signals=number == 0)


def limits(changes: Sequence[str], queued_requests: int, queued_tokens: int) -> Limits:
    """The table of limits with `NAME=NUMBER` changes. Raises UsageError naming the nearest limit."""
    kinds = {field.name: field.type for field in msgspec.structs.fields(Limits)}
    given: dict[str, float | int] = {"queued_requests": queued_requests, "queued_tokens": queued_tokens}
    for change in changes:
        name, _, text = change.partition("=")
        name = name.strip().replace("-", "_")
        if name not in kinds:
            near = difflib.get_close_matches(name, kinds, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]}?" if near else f" (limits: {', '.join(kinds)})"
            raise UsageError(f"--limit {change}: there is no limit {name!r}{hint}")
        try:
            given[name] = msgspec.convert(text.strip(), kinds[name], strict=False)
        except msgspec.ValidationError:
            raise UsageError(f"--limit {change}: expected a number") from None
        if given[name] <= 0:
            raise UsageError(f"--limit {change}: must be over 0")
    return Limits(**given)  # type: ignore[arg-type]


async def run_server(
    settings: Settings,
    configs: list[EngineConfig],
    model: str,
    listeners: list[socket.socket],
    display: StartDisplay,
) -> int:
    """Serves until told to stop, or until an engine or a front ends. Returns the process's exit code."""
    address = listeners[0].getsockname()[:2]
    options = server_options(settings, model, address)
    scheme = "https" if options.tls_certificate else "http"
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    url = f"{scheme}://{host}:{address[1]}"
    display.note(f"port     listening on {url}")
    code = EXIT_ENGINE
    async with Supervisor(configs) as supervisor:
        # The engines are on their way: what the front imports does not hold them up.
        from tsd.api.serve import Hooks, run

        ended: dict[str, ChildExit] = {}
        lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def watch() -> None:
            for child in asyncio.as_completed([child.wait() for child in supervisor.children]):
                exit_ = await child
                ended[exit_.name] = exit_
                if exit_.name.startswith("front") and not lost.done():
                    lost.set_result(str(exit_))

        def progress(engine: int, message: Progress) -> None:
            display.progress(engine, message.phase, message.detail, message.fraction)

        def engine_ready(engine: int, ready: Ready) -> None:
            display.engine_ready(engine, ready.model, ready.device, ready.dtype, ready.max_total_tokens)

        hooks = Hooks(
            engine_alive=lambda engine: f"engine {engine}" not in ended,
            on_progress=progress,
            on_engine_ready=engine_ready,
            on_ready=lambda: display.note(f"ready    {url}/v1  (Ctrl-C stops)"),
            on_fault=lambda engine, text: display.fault(engine, text),
            on_draining=lambda: display.note("drain    no new requests; a second signal stops at once"),
        )
        hooks.lost = lost
        endpoints = [EngineEndpoint(engine.config.engine, engine.socket_path) for engine in supervisor.engines]
        folder = str(supervisor.folder)
        for number, listener in enumerate(listeners[1:], 1):
            with listener:  # the child has its own; a copy here would take connections that nobody answers
                order = {
                    "options": options_of_front(options, number, folder),
                    "engines": endpoints,
                    "listen_fd": listener.fileno(),
                }
                child = ChildProcess(f"front {number}", "tsd.api.fronts.process", (), order)
                await supervisor.adopt(child, (listener.fileno(),))
        watching = asyncio.create_task(watch())
        try:
            code = await run(options_of_front(options, 0, folder), endpoints, listeners[0], hooks)
        finally:
            if code not in (0, EXIT_ENGINE):
                supervisor.kill()
            await supervisor.stop(5.0)
            watching.cancel()
        for exit_ in ended.values():
            if exit_.code and code:
                display.note(str(exit_))
    sys.stderr.flush()
    return code
