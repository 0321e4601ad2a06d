"""`tsd console --web`: the same console in a browser on this machine, through textual-serve. One console a tab."""

from __future__ import annotations

import os
import shlex
import sys

from tsd.console.errors import UsageError
from tsd.console.flags import ConsoleFlags

HOST = "127.0.0.1"


def command_of(argv: list[str]) -> str:
    """The command line of each tab's console: the same flags without those of the web server and without the key."""
    kept: list[str] = []
    skip = False
    for word in argv:
        if skip:
            skip = False
        elif word == "--web" or word.startswith(("--web-port=", "--admin-key=", "--api-key=")):
            continue
        elif word in ("--web-port", "--admin-key", "--api-key"):
            skip = True
        else:
            kept.append(word)
    code = "import sys; from tsd.console.app import main; sys.exit(main(sys.argv[1:]))"
    return shlex.join([sys.executable, "-c", code, *kept])


def serve(flags: ConsoleFlags, argv: list[str]) -> int:
    """Serves until interrupted. Raises UsageError when textual-serve is missing."""
    try:
        from textual_serve.server import Server
    except ImportError:
        raise UsageError("--web needs textual-serve: pip install 'tsd[web]'") from None
    if flags.record:
        raise UsageError("--web and --record exclude each other: every tab would write the file")
    if flags.key:
        # A key on a command line is seen by every user of the machine.
        os.environ["TSD_ADMIN_KEY"] = flags.key
    print(f"tsd console: http://{HOST}:{flags.web_port} (this machine only; Ctrl+C ends it)")
    Server(command_of(argv), host=HOST, port=flags.web_port, title="tsd console").serve()
    return 0
