"""A real server process on the CPU, started as a user starts it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


class ServerProcess:
    """`tsd start` with `arguments` on a free port. `log` holds its lines so far."""

    def __init__(self, *arguments: str, environ: dict[str, str] | None = None) -> None:
        self.log: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tsd.console.cli", "start", "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1", **(environ or {})},
        )
        self._seen = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._seen:
                self.log.append(line.rstrip("\n"))
                self._seen.notify_all()
        with self._seen:
            self._seen.notify_all()

    def wait_for(self, pattern: str, timeout: float = 60.0) -> re.Match[str]:
        """The first log line that matches; fails with the whole log where none comes."""
        end = time.monotonic() + timeout
        position = 0
        with self._seen:
            while True:
                for line in self.log[position:]:
                    position += 1
                    if found := re.search(pattern, line):
                        return found
                left = end - time.monotonic()
                if left <= 0 or (self.process.poll() is not None and not self._reader.is_alive()):
                    raise AssertionError(f"no line matches {pattern!r}:\n" + "\n".join(self.log))
                self._seen.wait(min(left, 0.5))

    @property
    def port(self) -> int:
        return int(self.wait_for(r"listening on http://[^ ]*:(\d+)").group(1))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_ready(self) -> None:
        self.wait_for(r" ready ")

    def request(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, timeout: float = 60.0
    ) -> tuple[int, Any]:
        """(status, decoded JSON or text)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            raw = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
            connection.request(method, path, raw, {"Content-Type": "application/json", **(headers or {})})
            answer = connection.getresponse()
            content = answer.read().decode("utf-8", "replace")
        finally:
            connection.close()
        with contextlib.suppress(ValueError):
            return answer.status, json.loads(content)
        return answer.status, content

    def children(self, module: str = "") -> list[int]:
        """Processes whose parent is the server: engines, other fronts, the grammar worker; or those of a module."""
        pids = [pid for pid, parent in _parents().items() if parent == self.process.pid]
        return [pid for pid in pids if module in _command(pid)]

    def stop(self, timeout: float = 20.0) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout)
            except subprocess.TimeoutExpired:
                self.process.kill()
        code = self.process.wait()
        self._reader.join(5.0)
        if self.process.stdout is not None and not self._reader.is_alive():
            self.process.stdout.close()
        return code


def _parents() -> dict[int, int]:
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                found[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
    return found


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def eventually(condition: Callable[[], object], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


@contextlib.contextmanager
def running_server(*arguments: str, environ: dict[str, str] | None = None) -> Iterator[ServerProcess]:
    server = ServerProcess(*arguments, environ=environ)
    try:
        yield server
    finally:
        server.stop()
