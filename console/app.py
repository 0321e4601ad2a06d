"""`tsd console`: resolves the flags and starts what they ask for. Imports Textual only when a screen is wanted."""

from __future__ import annotations

import sys

from tsd.console.errors import CommandError, UsageError
from tsd.console.flags import ConsoleFlags, parse


def main(argv: list[str]) -> int:
    """Runs the console with its own arguments; returns the exit code."""
    try:
        flags = parse(argv)
        if flags.once:
            from tsd.console.once import run_once

            return run_once(flags)
        if flags.web:
            from tsd.console.web import serve

            return serve(flags, argv)
        return run_screen(flags)
    except CommandError as error:
        print(f"tsd console: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


def run_screen(flags: ConsoleFlags) -> int:
    """The full-screen console."""
    from tsd.console.http import parse_url

    parse_url(flags.url)
    if not sys.stdout.isatty() and not _driven():
        raise UsageError("the console needs a terminal; --once prints one snapshot without one")
    from tsd.console.record import Recorder
    from tsd.console.tui import ConsoleApp

    recorder = Recorder(flags.record, flags.url) if flags.record else None
    if flags.replay:
        from tsd.console.record import ReplaySource

        replay = ReplaySource(flags.replay, flags.speed)
        app = ConsoleApp(replay, None, url=replay.head.url or str(flags.replay), theme=flags.theme, replay=True)
    elif flags.demo:
        from tsd.console.demo import URL, DemoFleet
        from tsd.console.demo_source import DemoOperator, DemoSource

        fleet = DemoFleet(start=_now() - 120)
        source = DemoSource(fleet, flags.interval_s, warm_s=120)
        app = ConsoleApp(source, DemoOperator(fleet, flags.read_only), url=URL, theme=flags.theme, recorder=recorder)
    else:
        from tsd.console.actions import Operator
        from tsd.console.source import ServerSource

        app = ConsoleApp(
            ServerSource(flags.url, flags.key, flags.interval_s),
            Operator(flags.url, flags.key, flags.read_only),
            url=flags.url,
            theme=flags.theme,
            recorder=recorder,
        )
    app.run()
    return app.return_code or 0


def _driven() -> bool:
    """Whether Textual writes to something else than a terminal: a browser through textual-serve, say."""
    import os

    return bool(os.environ.get("TEXTUAL_DRIVER"))


def _now() -> float:
    import time

    return time.time()
