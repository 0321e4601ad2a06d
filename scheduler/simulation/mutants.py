"""`tsd simulate --mutants`: known mistakes, put into a copy of the sources one at a time, each of which must be caught.

Owns the builds and the hunt; the list of mistakes is `mutations`. The mutated file is compiled anew in a temporary tree
beside links to everything else, and the simulator runs there, in its own process: short runs of every profile first,
then longer ones, until something is caught. Needs Cython and a C compiler, which building the package needs too.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy

from tsd.scheduler.simulation.mutations import MUTANTS, Mutant

ROOMS = ("cache", "scheduler", "scheduler/simulation")
TIMEOUT_S = 240
FLAGS = ("boundscheck=False", "wraparound=False", "cdivision=True", "language_level=3")
SCRIPT = "import sys; from tsd.scheduler.simulation.mutants import chase; sys.exit(chase(*map(int, sys.argv[1:])))"
CAUGHT = 3
"""Exit code of a chase that caught something."""


@dataclass(frozen=True)
class Verdict:
    """How a mutant fared. `caught_by` is empty for a survivor."""

    mutant: Mutant
    caught_by: str
    steps: int
    seconds: float


def package_root() -> Path:
    """The folder that holds scheduler/ and cache/ with their sources."""
    found = importlib.util.find_spec("tsd.scheduler")
    assert found is not None and found.origin is not None
    return Path(found.origin).resolve().parent.parent


def plant(mutant: Mutant, where: Path) -> str:
    """Lays out `where/tsd` with the mutated file built; returns an error text or nothing."""
    root = package_root()
    for room in ROOMS:
        folder = where / "tsd" / room
        folder.mkdir(parents=True)
        for entry in (root / room).iterdir():
            if entry.is_file() and entry.suffix in {".py", ".pxd", ".so", ".h"}:
                (folder / entry.name).symlink_to(entry)
    text = (root / mutant.file).read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        return f"its text occurs {text.count(mutant.old)} times in {mutant.file}"
    target = where / "tsd" / mutant.file
    target.unlink(missing_ok=True)
    target.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    if target.suffix == ".py":
        return ""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    built = target.with_name(target.stem + suffix)
    built.unlink(missing_ok=True)
    generated = target.with_suffix(".c")
    cython = [sys.executable, "-m", "cython", "-I", str(where), "-o", str(generated), str(target)]
    for flag in FLAGS:
        cython += ["-X", flag]
    compiler = (sysconfig.get_config_var("CC") or "cc").split()
    compile_ = [*compiler, "-shared", "-fPIC", "-O1", "-w", "-DNPY_NO_DEPRECATED_API=NPY_1_7_API_VERSION"]
    compile_ += ["-I", sysconfig.get_path("include"), "-I", numpy.get_include(), "-I", str(where / "tsd" / "cache")]
    compile_ += [str(generated), "-o", str(built)]
    for command in (cython, compile_):
        done = subprocess.run(command, cwd=where, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"does not build: {done.stderr[-400:]}"
    return ""


def chase(steps: int, seed: int) -> int:
    """Runs all profiles in this process until something is caught; prints what, and after how many steps."""
    from tsd.scheduler.simulation.simulator import Failure, sweep

    try:
        for _ in sweep(steps, seed):
            pass
    except Failure as failure:
        text = str(failure.cause).splitlines()
        print(f"{failure.before + failure.step}\t{type(failure.cause).__name__}: {text[0] if text else ''}")
        return CAUGHT
    return 0


def trial(mutant: Mutant, steps: int, seed: int) -> Verdict:
    """Lets one mutant loose until it is caught or `steps` steps are done. RuntimeError: it cannot be built."""
    began = time.perf_counter()
    where = Path(tempfile.mkdtemp(prefix="tsd-mutant-"))
    try:
        fault = plant(mutant, where)
        if fault:
            raise RuntimeError(f"{mutant.name}: {fault}")
        environment = {**os.environ, "PYTHONPATH": str(where), "PYTHONSAFEPATH": "1"}
        command = [sys.executable, "-c", SCRIPT, str(steps), str(seed)]
        try:
            done = subprocess.run(
                command, env=environment, cwd=where, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return Verdict(mutant, "hang", steps, time.perf_counter() - began)
        took = time.perf_counter() - began
        if done.returncode == CAUGHT:
            count, _, text = done.stdout.strip().partition("\t")
            return Verdict(mutant, text, int(count), took)
        if done.returncode < 0:
            return Verdict(mutant, f"killed by signal {-done.returncode}", 0, took)
        if done.returncode:
            raise RuntimeError(f"{mutant.name}: the simulator itself broke: {done.stderr[-400:]}")
        return Verdict(mutant, "", steps, took)
    finally:
        shutil.rmtree(where, ignore_errors=True)


def hunt(steps: int, seed: int, names: tuple[str, ...] = (), workers: int = 2) -> int:
    """Tries every mutant (or those named); prints a line each. Exit code 1 when more than one survives."""
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    began = time.perf_counter()
    survivors: list[str] = []
    latest = 0
    with ThreadPoolExecutor(workers) as pool:
        for verdict in pool.map(lambda mutant: trial(mutant, steps, seed), chosen):
            if not verdict.caught_by:
                survivors.append(verdict.mutant.name)
            else:
                latest = max(latest, verdict.steps)
            print(
                f"{verdict.mutant.name:<56} {verdict.caught_by or 'SURVIVED'} "
                f"({verdict.steps} steps, {verdict.seconds:.0f} s)",
                flush=True,
            )
    caught = len(chosen) - len(survivors)
    took = time.perf_counter() - began
    print(f"{caught} of {len(chosen)} mutants caught in {took:.0f} s, the latest after {latest} steps", end="")
    print(f"; survivors: {', '.join(survivors)}" if survivors else "")
    return 0 if len(survivors) <= 1 else 1
