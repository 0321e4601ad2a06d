"""The `tsd` command: finds the subcommand and hands over to it. Imports nothing heavy before it knows which."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import NamedTuple

from tsd.console.errors import CommandError


class Subcommand(NamedTuple):
    """`target` is `module:function`; the function takes the remaining arguments and returns an exit code."""

    target: str
    summary: str


SUBCOMMANDS = {
    "start": Subcommand("tsd.console.start:main", "serve a model over an OpenAI-compatible API"),
    "console": Subcommand("tsd.console.app:main", "watch and steer a running server"),
    "bench": Subcommand("tsd.bench.cli:main", "measure a server, or a part of this one"),
    "connect": Subcommand("tsd.api.connect:main", "print the settings that make an agent use a running server"),
    "kernels": Subcommand("tsd.engine.kernels_command:main", "say which kernel runs each operation, and why"),
    "simulate": Subcommand("tsd.scheduler.simulation.simulator:main", "run the control plane in a simulator"),
    "scheduler": Subcommand("tsd.scheduler.states:main", "print the states of a request as text or a diagram"),
    "model": Subcommand("tsd.console.default_model:main", "fetch the default model into the user's cache"),
    "version": Subcommand("tsd.console.version:main", "print the version and what it runs on"),
}


def usage() -> str:
    width = max(map(len, SUBCOMMANDS))
    lines = [f"  {name:<{width}}  {command.summary}" for name, command in SUBCOMMANDS.items()]
    return "\n".join(
        [
            "usage: tsd COMMAND [OPTION ...]",
            "",
            "tsd serves large language models to agents.",
            "",
            *lines,
            "",
            "Try `tsd start` to serve the default model on this machine, then in another terminal:",
            "",
            "  curl http://127.0.0.1:8000/v1/chat/completions -H 'content-type: application/json' \\",
            """    -d '{"messages": [{"role": "user", "content": "What is the capital of France?"}]}'""",
            "",
            "`tsd COMMAND --help` explains a command.",
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    name = "version" if arguments[0] in ("-V", "--version") else arguments[0]
    command = SUBCOMMANDS.get(name)
    try:
        if command is None:
            import difflib

            near = difflib.get_close_matches(name, SUBCOMMANDS, n=1)
            hint = f"did you mean `tsd {near[0]}`?" if near else "`tsd --help` lists the commands"
            print(f"tsd: unknown command {name}; {hint}", file=sys.stderr)
            return 2
        module, function = command.target.split(":")
        return int(getattr(importlib.import_module(module), function)(arguments[1:]))
    except CommandError as error:
        print(f"tsd: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 141


if __name__ == "__main__":
    sys.exit(main())
