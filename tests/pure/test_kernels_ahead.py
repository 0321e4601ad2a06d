"""Compiling in several processes, with calls that stand for a compiler's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, sys
from pathlib import Path
from tsd.kernels.ahead import AheadError, Job, compile_all

folder, kind, processes, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])

def work(number):
    if kind == "raises" and number in (3, 5):
        raise ValueError("no such instruction")
    if kind == "dies" and number == 3:
        os._exit(9)
    (folder / f"{number}.{os.getpid()}").touch()

seen = []
jobs = [Job(f"kernel{n}", str(n), lambda n=n: work(n)) for n in range(count)]
try:
    compile_all(jobs, processes, seen.append, lambda: (folder / f"started.{os.getpid()}").touch())
except AheadError as error:
    print(error)
print(seen == list(range(1, len(seen) + 1)), len(seen))
"""


def run(folder: Path, kind: str, processes: int = 3, count: int = 40) -> list[str]:
    """The program's lines; it forks, which this process had better not do itself."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), kind, str(processes), str(count)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize(("processes", "count"), [(1, 5), (3, 40), (8, 2), (2, 0)])
def test_each_job_is_done_once_and_told(tmp_path: Path, processes: int, count: int) -> None:
    assert run(tmp_path, "works", processes, count) == [f"True {count}"]
    names = sorted(path.name for path in tmp_path.iterdir())
    done = [name.split(".")[0] for name in names if not name.startswith("started")]
    assert sorted(map(int, done)) == list(range(count))
    workers = {name.split(".")[1] for name in names if name.startswith("started")}
    assert len(workers) == min(processes, count)
    assert {name.split(".")[1] for name in names} == workers


def test_a_failure_is_named_after_the_others_are_done(tmp_path: Path) -> None:
    lines = run(tmp_path, "raises")
    assert lines[0] == "2 kernels could not be compiled: kernel3, kernel5"
    assert lines[-1] == "True 40"
    assert sum(not path.name.startswith("started") for path in tmp_path.iterdir()) == 38


def test_a_process_that_ends_is_noticed(tmp_path: Path) -> None:
    lines = run(tmp_path, "dies", processes=1, count=10)
    assert lines == ["7 kernels were left, because a compiling process ended", "True 3"]
