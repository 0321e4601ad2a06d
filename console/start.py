"""`tsd start`: from flags to a serving front with its engines. The one place that sees the layers it composes."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tsd.console import default_model, options
from tsd.console.display import StartDisplay, say
from tsd.console.errors import CommandError, UsageError
from tsd.console.options import Settings
from tsd.engine.config import EngineConfig

MAX_FRONTS = 64

DESCRIPTION = """Serves MODEL over an OpenAI-compatible API.

MODEL is a GGUF file or a folder in Hugging Face layout (config.json, *.safetensors, tokenizer.json). Without it the
default model is served, a small one that runs on a laptop. Every option can also be set as TSD_NAME in the
environment, or as `name: value` in a YAML file given with --config; the command line wins over both."""


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        "tsd start",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        exit_on_error=False,
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help="GGUF file or model folder (default: a small model)")
    parser.add_argument("--config", metavar="FILE.yaml", help="YAML file of options")
    parser.add_argument("--dry-run", action="store_true", help="print what would run, then exit; loads no weights")
    parser.add_argument("--console", action="store_true", help="open the operator's console beside the server")
    options.add_arguments(parser)
    try:
        known, unknown = parser.parse_known_args(list(argv))
    except argparse.ArgumentError as error:
        raise UsageError(str(error)) from None
    options.refuse_unknown(unknown, sorted(parser._option_string_actions))
    given = {name: value for name, value in vars(known).items() if name in options.BY_KEY}
    config_file = known.config or os.environ.get("TSD_CONFIG")
    settings = options.resolve(given, os.environ, config_file)
    refuse_unsupported(settings)
    gpus = choose_gpus(settings)
    model = known.model or options.model_from_file(config_file) or ""
    if known.dry_run:
        if not model:
            model = str(default_model.fetch())
        return dry_run(settings, engine_configs(settings, model, gpus)[0])
    # The port comes first: a conflict must not be found out after the weights have loaded.
    listeners = bind(settings["host"].value, settings["port"].value, settings["api_workers"].value)
    if not model:
        if not default_model.path().exists():
            say(0.0, f"fetching the default model, {default_model.NAME}")
        model = str(default_model.fetch())
    elif not Path(model).exists():
        raise CommandError(f"there is no model at {model}: give a GGUF file or a model folder")
    configs = engine_configs(settings, model, gpus)
    if known.console:
        key = settings["admin_key"].value
        scheme = "https" if settings["tls_certfile"].value else "http"
        return with_console(listeners, scheme, key, lambda: serve(settings, configs, model, listeners))
    return serve(settings, configs, model, listeners)


def refuse_unsupported(settings: Settings) -> None:
    """What has a flag but is not built yet is refused, never ignored."""
    if settings["tensor_parallel_size"].value > 1:
        raise UsageError("--tensor-parallel-size over 1 is not supported yet: each GPU serves a copy of the model")
    for key in ("enable_expert_parallel", "moe_backend"):
        if settings[key].value:
            raise UsageError(f"--{options.BY_KEY[key].name} is not supported yet: no model with experts is")
    if settings["api_workers"].value > MAX_FRONTS:
        raise UsageError(f"--api-workers must be at most {MAX_FRONTS}")
    if bool(settings["tls_certfile"].value) != bool(settings["tls_keyfile"].value):
        raise UsageError("--tls-certfile and --tls-keyfile go together")


def choose_gpus(settings: Settings) -> tuple[int, ...]:
    """The GPUs to serve on; empty for the CPU. `auto` is GPU 0 where the driver is, else the CPU."""
    gpus = settings["gpus"].value
    if gpus is None:
        gpus = (0,) if Path("/dev/nvidiactl").exists() else ()
    copies = settings["data_parallel_size"].value
    if copies and copies != max(1, len(gpus)):
        raise UsageError(f"--data-parallel-size {copies} needs as many GPUs; --gpus names {len(gpus)}")
    return gpus


def engine_configs(settings: Settings, model: str, gpus: tuple[int, ...]) -> list[EngineConfig]:
    """One for each GPU, or one for the CPU. Options of the same name carry over."""
    fields = {field.name for field in msgspec.structs.fields(EngineConfig)}
    shared: dict[str, Any] = {key: setting.value for key, setting in settings.items() if key in fields}
    if not settings["host_cache"].value:
        shared["host_cache_gb"] = 0.0
    shared["model"] = model
    if not gpus:
        return [EngineConfig(**shared, device="cpu")]
    return [EngineConfig(**shared, device=f"cuda:{gpu}", engine=i) for i, gpu in enumerate(gpus)]


def bind(host: str, port: int, count: int = 1) -> list[socket.socket]:
    """`count` listening sockets on one port, over which the kernel spreads connections. Raises CommandError naming
    the address."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        first = _listening(family, (host, port), shared=False)
        # Only now, bound alone: a second server on the port must fail, not take a share of the connections.
        if count > 1:
            first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        address = first.getsockname()
        return [first, *(_listening(family, address, shared=True) for _ in range(count - 1))]
    except OSError as error:
        raise CommandError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None


def _listening(family: int, address: Any, shared: bool) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(address)
    listener.listen(4096)
    listener.setblocking(False)
    return listener


def serve(settings: Settings, configs: list[EngineConfig], model: str, listeners: list[socket.socket]) -> int:
    import uvloop

    from tsd.console.serving import run_server

    return uvloop.run(run_server(settings, configs, model, listeners, StartDisplay(len(configs))))


def dry_run(settings: Settings, config: EngineConfig) -> int:
    """Prints what a start would do. Kernels are asked in a process of their own, as an engine is."""
    print("configuration")
    for name, value, source in options.describe(settings):
        print(f"  {name:<24} {value:<28} {source}")
    sys.stdout.flush()
    command = [
        sys.executable,
        "-m",
        "tsd.engine.kernels_command",
        "--config-json",
        msgspec.json.encode(config).decode(),
    ]
    return subprocess.run(command, check=False, env={**os.environ, "PYTHONSAFEPATH": "1"}).returncode


def with_console(listeners: list[socket.socket], scheme: str, admin_key: str, serve_now: Callable[[], int]) -> int:
    """Opens the console in this terminal and serves behind it; the server's own lines go to a file."""
    host, port = listeners[0].getsockname()[:2]
    log_file, log_path = tempfile.mkstemp(prefix="tsd-", suffix=".log")
    child = os.fork()
    if child == 0:
        os.dup2(log_file, 2)
        os.dup2(log_file, 1)
        os.setsid()
        os._exit(serve_now())
    os.close(log_file)
    for listener in listeners:
        listener.close()
    from tsd.console.app import main as console_main

    try:
        # Handed over inside this process: nothing of it is seen by other users.
        key = ["--admin-key", admin_key] if admin_key else []
        return console_main(["--url", f"{scheme}://{host}:{port}", *key])
    finally:
        print(f"stopping the server; its log is {log_path}", file=sys.stderr)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)
