"""`tsd bench …`: finds the subcommand and imports only what it needs.

BenchErrors are printed as one line and end with their own exit code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec

from tsd.bench.errors import BenchError, UsageError

# name → (module, what it does)
COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("tsd.bench.serve", "measure a running server over HTTP (also plain `tsd bench`)"),
    "show": ("tsd.bench.show", "print a saved result and its run record"),
    "compare": ("tsd.bench.compare", "ratios of two or more results, with confidence intervals and plots"),
    "sweep": ("tsd.bench.sweep", "runs over concurrencies or rates, or the highest load that holds a goal"),
    "latency": ("tsd.bench.latency", "one batch through the engine in this process, no server"),
    "throughput": ("tsd.bench.throughput", "many requests through the engine in this process, no server"),
    "front": ("tsd.bench.front", "what the HTTP front alone can carry, with an engine that costs nothing"),
    "stall": ("tsd.bench.stall", "how long the front stands still while it takes huge prompts"),
    "scheduler": ("tsd.bench.scheduler", "microseconds a step of the scheduler takes"),
    "cache": ("tsd.bench.cache", "microseconds of prefix lookup, insertion and eviction"),
    "kernels": ("tsd.bench.kernels", "microseconds and bandwidth of each kernel, on the CPU or a GPU"),
}

_USAGE = """usage: tsd bench [serve] [flags]
       tsd bench COMMAND [flags]

Measures how fast a server answers, and compares servers. Start with

  tsd bench --workload solo --base-url http://127.0.0.1:8000

commands:
{commands}

`tsd bench COMMAND --help` explains each one; what every figure means is in bench/README.md.
"""


def available() -> dict[str, tuple[str, str]]:
    """The commands whose modules this installation has."""
    return {name: entry for name, entry in COMMANDS.items() if find_spec(entry[0]) is not None}


def help_text() -> str:
    """One screen for a newcomer."""
    width = max(len(name) for name in COMMANDS)
    lines = [f"  {name:<{width}}  {what}" for name, (_, what) in available().items()]
    return _USAGE.format(commands="\n".join(lines))


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code of the command; 2 for a usage error."""
    args = list(sys.argv[1:] if argv is None else argv)
    if args[:1] in (["--help"], ["-h"], ["help"]):
        print(help_text(), end="")
        return 0
    name = "serve"
    if args and not args[0].startswith("-"):
        name = args.pop(0)
    try:
        if name not in available():
            from difflib import get_close_matches

            near = get_close_matches(name, available(), 1)
            hint = f"did you mean {near[0]!r}?" if near else "there are " + ", ".join(available())
            raise UsageError(f"no command {name!r}; {hint}")
        run: Callable[[list[str]], int] = import_module(COMMANDS[name][0]).main
        return run(args)
    except BenchError as error:
        print(f"tsd bench: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
