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
from tsd.kernels.ahead import AheadError, Compilers, Job

folder, kind, processes, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
begun = int(sys.argv[5])

def work(number):
    if kind == "raises" and number in (3, 5):
        raise ValueError("no such instruction")
    if kind == "dies" and number == 3:
        os._exit(9)
    (folder / f"{number}.{os.getpid()}").touch()

seen = []
jobs = [Job(f"kernel{n}", str(n), lambda n=n: work(n)) for n in range(count)]
try:
    compilers = Compilers(processes, lambda: (folder / f"started.{os.getpid()}").touch())
    early = [job for job in jobs[:begun] if compilers.begin(job)]
    compilers.finish(jobs[len(early):], seen.append)
except AheadError as error:
    print(error)
print(seen == list(range(1, len(seen) + 1)), len(seen))
"""


def run(folder: Path, kind: str, processes: int = 3, count: int = 40, begun: int = 0) -> list[str]:
    """The program's lines; it forks, which this process had better not do itself."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), kind, str(processes), str(count), str(begun)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("processes", "count", "begun"), [(1, 5, 0), (3, 40, 0), (8, 2, 0), (2, 0, 0), (3, 40, 2), (3, 40, 9), (4, 2, 2)]
)
def test_each_job_is_done_once_and_told(tmp_path: Path, processes: int, count: int, begun: int) -> None:
    """`begun` are asked to begin at once, of which as many do as there may be processes."""
    assert run(tmp_path, "works", processes, count, begun) == [f"True {count}"]
    names = sorted(path.name for path in tmp_path.iterdir())
    done = [name.split(".")[0] for name in names if not name.startswith("started")]
    assert sorted(map(int, done)) == list(range(count))
    workers = {name.split(".")[1] for name in names if name.startswith("started")}
    early = min(begun, processes)
    assert len(workers) == early + min(processes, count - early)
    assert {name.split(".")[1] for name in names} == workers


def test_a_failure_is_named_after_the_others_are_done(tmp_path: Path) -> None:
    lines = run(tmp_path, "raises")
    assert lines[0] == "2 kernels could not be compiled: kernel3, kernel5"
    assert lines[-1] == "True 40"
    assert sum(not path.name.startswith("started") for path in tmp_path.iterdir()) == 38


def test_a_process_that_ends_is_noticed(tmp_path: Path) -> None:
    lines = run(tmp_path, "dies", processes=1, count=10)
    assert lines == ["7 kernels were left, because a compiling process ended", "True 3"]
