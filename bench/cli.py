"""`tsd bench …`: finds the subcommand and imports only what it needs.

BenchErrors are printed as one line and end with their own exit code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from tsd.bench.errors import BenchError, UsageError

# name → (module, what it does)
COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("tsd.bench.serve", "measure a running server over HTTP (also plain `tsd bench`)"),
    "show": ("tsd.bench.show", "print a saved result and its run record"),
    "compare": ("tsd.bench.compare", "ratios of two or more results, with confidence intervals and plots"),
    "front": ("tsd.bench.front", "what the API front costs per streamed token, on this machine alone"),
    "sweep": ("tsd.bench.sweep", "runs over concurrencies or rates, or the highest load that holds a goal"),
}

_USAGE = """usage: tsd bench [serve] [flags]
       tsd bench COMMAND [flags]

Measures how fast a server answers, and compares servers. Start with

  tsd bench --workload solo --base-url http://127.0.0.1:8000

commands:
{commands}

`tsd bench COMMAND --help` explains each one; what every figure means is in bench/README.md.
"""


def help_text() -> str:
    """One screen for a newcomer."""
    width = max(len(name) for name in COMMANDS)
    return _USAGE.format(commands="\n".join(f"  {name:<{width}}  {what}" for name, (_, what) in COMMANDS.items()))


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
        if name not in COMMANDS:
            from difflib import get_close_matches

            near = get_close_matches(name, COMMANDS, 1)
            raise UsageError(f"no command {name!r}" + (f"; did you mean {near[0]!r}?" if near else f"; {_known()}"))
        run: Callable[[list[str]], int] = import_module(COMMANDS[name][0]).main
        return run(args)
    except BenchError as error:
        print(f"tsd bench: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


def _known() -> str:
    return "there are " + ", ".join(COMMANDS)


if __name__ == "__main__":
    sys.exit(main())
