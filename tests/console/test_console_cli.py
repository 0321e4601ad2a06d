"""`tsd console` as a command: help, one snapshot, exit codes, clear words and never a traceback."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading

import pytest
from support.console import HEAD, event, scripted, small

from tsd.console.app import main
from tsd.console.demo import DemoFleet
from tsd.console.demo_http import DemoServer
from tsd.console.record import Recorder
from tsd.console.web import command_of, from_here


def with_server(make, use):
    """Calls `use(url)` while the server of `make()` runs in another thread."""
    ready, stop = threading.Event(), threading.Event()
    found: dict[str, str] = {}

    async def serve():
        async with make() as url:
            found["url"] = url
            ready.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(10)
        return use(found["url"])
    finally:
        stop.set()
        thread.join()


def demo():
    return DemoServer(DemoFleet(2, 16, 1024), key="k").running()


def test_help_imports_no_screen_and_no_http():
    code = (
        "import sys\nfrom tsd.console.app import main\ntry:\n main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'textual', 'rich', 'aiohttp', 'msgspec', 'asyncio'} & set(sys.modules)\nassert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "--read-only" in done.stdout


def test_once_prints_text(capsys):
    assert with_server(demo, lambda url: main(["--once", "--url", url, "--admin-key", "k"])) == 0
    out = capsys.readouterr().out
    assert "Qwen3-8B" in out and "engine 1 cuda:1  ready" in out and "target 1.50 s" in out


def test_once_json_is_the_snapshot(capsys, monkeypatch):
    monkeypatch.setenv("TSD_ADMIN_KEY", "k")
    assert with_server(demo, lambda url: main(["--once", "--json", "--url", url])) == 0
    assert json.loads(capsys.readouterr().out)["engines"][1]["device"] == "cuda:1"


def test_once_imports_no_screen():
    code = (
        "import sys\nfrom tsd.console.app import main\nassert main(['--once', '--demo']) == 0\n"
        "assert not {'textual', 'rich', 'aiohttp'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("answer", "code", "word"),
    [
        (b"HTTP/1.1 401 No\r\n\r\n", 4, "key"),
        (b"HTTP/1.1 404 No\r\n\r\n", 5, "no tsd server"),
        (b"HTTP/1.1 500 No\r\n\r\n", 3, "error"),
        (HEAD + event("garbage"), 6, "not JSON"),
        (HEAD + event(small().replace('"version": 1', '"version": 9')), 5, "version 9"),
        (HEAD, 3, "closed the stream"),
    ],
)
def test_exit_codes(answer, code, word, capsys):
    async def script(number, request, writer):
        writer.write(answer)

    assert with_server(lambda: scripted(script), lambda url: main(["--once", "--url", url])) == code
    err = capsys.readouterr().err
    assert err.startswith("tsd console: ") and word in err and "Traceback" not in err and err.count("\n") == 1


@pytest.mark.parametrize(
    "argv",
    [
        ["--json"],
        ["--once", "--web"],
        ["--replay", "a", "--record", "b"],
        ["--replay", "a", "--demo"],
        ["--interval", "0.1"],
        ["--speed", "0"],
        ["--url", "ftp://x", "--once"],
        ["--url", "http://user:pw@host"],
        ["--once", "--replay", "/no/such/file"],
        [],
    ],
)
def test_wrong_use_is_one_line(argv, capsys):
    """The last one: without a terminal there is no screen."""
    assert main(argv) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "Traceback" not in err


def test_once_from_a_recording(tmp_path, capsys):
    fleet = DemoFleet(1, 8, 256)
    fleet.tick()
    recorder = Recorder(tmp_path / "r.gz", "http://h")
    recorder.snapshot(fleet.encode())
    recorder.close()
    assert main(["--once", "--replay", str(tmp_path / "r.gz")]) == 0
    assert "Qwen3-8B" in capsys.readouterr().out


def test_the_key_never_reaches_a_command_line():
    argv = ["--web", "--admin-key", "s3cret", "--api-key=s3cret", "--web-port", "9", "--url", "http://h", "--read-only"]
    command = command_of(argv)
    assert "s3cret" not in command and "--web" not in command
    assert command.endswith("--url http://h --read-only")


@pytest.mark.parametrize(
    ("host", "origin", "allowed"),
    [
        ("127.0.0.1:8001", None, True),
        ("localhost:8001", "http://localhost:8001", True),
        ("127.0.0.1:8001", "http://127.0.0.1:8001", True),
        ("127.0.0.1:8001", "https://evil.example", False),
        ("127.0.0.1:8001", "http://127.0.0.1:9000", False),
        ("127.0.0.1:8001", "null", False),
        ("evil.example:8001", None, False),
        (None, None, False),
    ],
)
def test_a_browser_console_answers_only_its_own_page(host, origin, allowed):
    assert from_here(host, origin, 8001) is allowed
