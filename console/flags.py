"""The flags of `tsd console`, resolved once into a frozen value. Knows nothing about screens."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

from tsd.console.errors import UsageError

DEFAULT_URL = "http://127.0.0.1:8000"
THEMES = ("night", "day", "contrast", "ansi")


@dataclass(frozen=True)
class ConsoleFlags:
    url: str = DEFAULT_URL
    key: str | None = None
    read_only: bool = False
    record: Path | None = None
    replay: Path | None = None
    speed: float = 1.0
    demo: bool = False
    once: bool = False
    json: bool = False
    web: bool = False
    web_port: int = 8001
    interval_s: float = 1.0
    theme: str = "night"


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="tsd console",
        description="Watch and steer a running tsd server: latency, KV pages, requests, events, kernels.",
        epilog="Inside, ? shows every key. NO_COLOR is honoured. Exit codes: 2 usage, 3 server down, 4 key refused, "
        "5 no tsd server of this version, 6 garbage.",
    )
    p.add_argument("--url", default=os.environ.get("TSD_URL", DEFAULT_URL), help="the server (default: %(default)s)")
    p.add_argument(
        "--admin-key", "--api-key", dest="key", metavar="KEY", help="its admin key (default: $TSD_ADMIN_KEY)"
    )
    p.add_argument("--read-only", action="store_true", help="look, and refuse every action")
    p.add_argument(
        "--interval", type=float, default=1.0, metavar="S", help="seconds between snapshots, from 0.5 on (default: 1)"
    )
    p.add_argument(
        "--theme", choices=THEMES, default=os.environ.get("TSD_CONSOLE_THEME", "night"), help="default: night"
    )
    p.add_argument("--record", type=Path, metavar="FILE", help="save the stream to a new FILE (.gz compresses)")
    p.add_argument("--replay", type=Path, metavar="FILE", help="play a recording instead of asking a server")
    p.add_argument("--speed", type=float, default=1.0, metavar="X", help="play X times as fast (default: 1)")
    p.add_argument("--demo", action="store_true", help="show a made-up server, to try the console without one")
    p.add_argument("--once", action="store_true", help="print one snapshot as text and leave")
    p.add_argument("--json", action="store_true", help="with --once: print it as JSON")
    p.add_argument("--web", action="store_true", help="serve the console to a browser on this machine")
    p.add_argument("--web-port", type=int, default=8001, metavar="N", help="port for --web (default: %(default)s)")
    return p


def parse(argv: list[str]) -> ConsoleFlags:
    """The resolved flags. argparse leaves by SystemExit(2) for unknown ones; a wrong combination raises UsageError."""
    found = parser().parse_args(argv)
    if found.json and not found.once:
        raise UsageError("--json goes with --once")
    if found.replay and found.record:
        raise UsageError("--record and --replay exclude each other")
    if found.replay and found.demo:
        raise UsageError("--replay and --demo exclude each other")
    if found.once and (found.web or found.record):
        raise UsageError("--once goes with neither --web nor --record")
    if not 0.5 <= found.interval <= 60:
        raise UsageError("--interval must be between 0.5 and 60 seconds")
    if not 0.01 <= found.speed <= 1000:
        raise UsageError("--speed must be between 0.01 and 1000")
    if found.theme not in THEMES:
        raise UsageError(f"$TSD_CONSOLE_THEME is {found.theme}; the themes are {', '.join(THEMES)}")
    return ConsoleFlags(
        url=found.url,
        key=found.key or os.environ.get("TSD_ADMIN_KEY"),
        read_only=found.read_only,
        record=found.record,
        replay=found.replay,
        speed=found.speed,
        demo=found.demo,
        once=found.once,
        json=found.json,
        web=found.web,
        web_port=found.web_port,
        interval_s=found.interval,
        theme=found.theme,
    )
