"""`tsd console --web`: the same console in a browser on this machine, through textual-serve. One console a tab.

A page of another site, open in the same browser, could reach a loopback port: requests that do not come from the
console's own page are refused.
"""

from __future__ import annotations

import os
import shlex
import sys
from typing import Any

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


def from_here(host: str | None, origin: str | None, port: int) -> bool:
    """Whether a request with these headers comes from the console's own page, or from no page at all."""
    ours = {f"{HOST}:{port}", f"localhost:{port}"}
    return host in ours and (origin is None or origin.removeprefix("http://") in ours)


def serve(flags: ConsoleFlags, argv: list[str]) -> int:
    """Serves until interrupted. Raises UsageError when textual-serve is missing."""
    try:
        from aiohttp import web
        from textual_serve.server import Server
    except ImportError:
        raise UsageError("--web needs textual-serve: pip install 'tsd[web]'") from None
    if flags.record:
        raise UsageError("--web and --record exclude each other: every tab would write the file")
    if flags.key:
        # A key on a command line is seen by every user of the machine.
        os.environ["TSD_ADMIN_KEY"] = flags.key

    @web.middleware
    async def own_page_only(request: web.Request, handler: Any) -> web.StreamResponse:
        if not from_here(request.headers.get("Host"), request.headers.get("Origin"), flags.web_port):
            return web.Response(status=403, text="this console answers only its own page")
        answer: web.StreamResponse = await handler(request)
        return answer

    class LocalServer(Server):
        async def _make_app(self) -> web.Application:
            app = await super()._make_app()
            app.middlewares.append(own_page_only)
            return app

    print(f"tsd console: http://{HOST}:{flags.web_port} (this machine only; Ctrl+C ends it)")
    LocalServer(command_of(argv), host=HOST, port=flags.web_port, title="tsd console").serve()
    return 0
