"""`tsd simulate --mutants`: known mistakes, put into a copy of the sources one at a time, each of which must be caught.

Owns the list of mistakes and the builds. A mutant is a text that occurs once in one file and what replaces it; the file
is compiled anew in a temporary tree beside links to everything else, and the simulator runs there, in its own process.
Needs Cython and a C compiler, which building the package needs too.
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

PROFILES = ("mixed", "tiers", "pressure", "aborts")
TIMEOUT_S = 240
FLAGS = ("boundscheck=False", "wraparound=False", "cdivision=True", "language_level=3")


@dataclass(frozen=True)
class Mutant:
    """`old` in `file` (relative to the package) becomes `new`."""

    name: str
    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Verdict:
    """How a mutant fared. `caught_by` is empty for a survivor."""

    mutant: Mutant
    caught_by: str
    steps: int


CORE, TIERS, INDEX, REQUESTS = "scheduler/core.pyx", "scheduler/tiers.pyx", "cache/index.pyx", "scheduler/requests.pyx"
PAGES, RETRACTION, BATCH = "scheduler/pages.pyx", "scheduler/retraction.pyx", "scheduler/batch.pyx"
ADMISSION, LANDING, ENDING = "scheduler/admission.pyx", "scheduler/landing.pyx", "scheduler/ending.pyx"
MOVES = "scheduler/moves.pyx"

MUTANTS: tuple[Mutant, ...] = (
    Mutant("dropped free of private pages", PAGES, "        s.pool.give(pages[k])\n", "        pass\n"),
    Mutant("dropped release of references", PAGES, "        s.index.unref(nodes[k])\n", "        pass\n"),
    Mutant("skipped fence on a replaced page", PAGES, "s.fence.add(page, s.step - 1)", "s.pool.give(page)"),
    Mutant("fence lifted one step early", LANDING, "s.fence.lift(step)", "s.fence.lift(step + 1)"),
    Mutant(
        "pages of an ended request freed under a launched step",
        ENDING,
        "if r.flights == 0 and r.moves == 0:",
        "if True:",
    ),
    Mutant(
        "victim's pages freed under a launched step",
        RETRACTION,
        "    if r.flights == 0:\n        park(s, at)\n    return 0",
        "    park(s, at)\n    return 0",
    ),
    Mutant("stale page count after a match", ADMISSION, "need = total - device_run", "need = total - run"),
    Mutant(
        "no roll-back of references",
        ADMISSION,
        "        for k in range(run - 1, -1, -1):\n            s.index.unref(s.scratch[k])\n",
        "",
    ),
    Mutant(
        "no token recomputed on a full hit",
        ADMISSION,
        "limit = (r.num_tokens - 1) // s.page_size",
        "limit = r.num_tokens // s.page_size",
    ),
    Mutant(
        "pages published before they land", PAGES, "full = r.landed // s.page_size", "full = r.computed // s.page_size"
    ),
    Mutant(
        "wasted token of an aborted row counted",
        LANDING,
        "if r.state == S_DRAINING or r.state == S_ABORTING:\n            s.c_dropped",
        "if r.state == S_DRAINING:\n            s.c_dropped",
    ),
    Mutant("min_tokens ignored", REQUESTS, "if r.num_tokens < r.min_total:", "if False:"),
    Mutant("length checked one too late", LANDING, "if r.num_tokens >= r.max_total:", "if r.num_tokens > r.max_total:"),
    Mutant(
        "a step scheduled past the end",
        BATCH,
        "        r.num_tokens + r.samples < r.max_total\n        and r.computed ==",
        "        r.num_tokens + r.samples <= r.max_total\n        and r.computed ==",
    ),
    Mutant("stop token not reported", LANDING, "r.stop_token = token", "r.stop_token = -1"),
    Mutant("ended request stays known", ENDING, "    del s.by_id[r.id]\n", "    pass\n"),
    Mutant("slot leaked", PAGES, "    s.num_free_slots += 1\n", "    pass\n"),
    Mutant("released slot not announced", PAGES, "build.add_released(r.slot)", "pass"),
    Mutant("page-table changes of a slot given away kept", PAGES, "build.drop_deltas(r.slot)", "pass"),
    Mutant("page of a failed row not cleaned", PAGES, "(<Build>s.ring[s.ring_at]).add_zero(page)", "pass"),
    Mutant("failed row's pages not marked", PAGES, "        if r.poisoned:\n", "        if False:\n"),
    Mutant("failed row goes on", LANDING, "if any_failed and i in failed:", "if False:"),
    Mutant("deadline ignored", CORE, "if now >= self.soonest:", "if False:"),
    Mutant("token credited to another row", LANDING, "rows[count] = i", "rows[count] = count"),
    Mutant("generated tokens lost by retraction", BATCH, "if r.num_tokens > r.num_prompt:", "if False:"),
    Mutant("retracted request forgotten", RETRACTION, "    s.requests.enqueue_retracted(at)\n", ""),
    Mutant(
        "terminal event given twice",
        CORE,
        "            self.finished = []\n            return out",
        "            return out",
    ),
    Mutant(
        "shared page's node released parent first",
        PAGES,
        "for k in range(r.num_nodes - 1, -1, -1):",
        "for k in range(r.num_nodes):",
    ),
    Mutant("failed copy to the device believed", MOVES, "s.tiers.loaded(t, ok)", "s.tiers.loaded(t, True)"),
    Mutant(
        "rotten disk pages believed",
        MOVES,
        "s.tiers.prefetched(t, r.keys, r.tokens, min(good, t.count))",
        "s.tiers.prefetched(t, r.keys, r.tokens, t.count)",
    ),
    Mutant("salt ignored", REQUESTS, "self.hasher.root(spec.salt)", 'self.hasher.root(b"")'),
    Mutant(
        "lost pin of host pages while they load",
        ADMISSION,
        "            s.index.pin(s.scratch[k])\n",
        "            pass\n",
    ),
    Mutant("lost reference of a write-back", TIERS, "            self.index.ref(t.nodes[k])\n", ""),
    Mutant("failed write-back believed", TIERS, "if ok and node.host < 0:", "if node.host < 0:"),
    Mutant(
        "host page leaked when a write-back fails",
        TIERS,
        "            else:\n                self.host.give(t.pages[i])\n",
        "",
    ),
    Mutant(
        "host page leaked when its key is known",
        TIERS,
        "                continue\n            self.host.give(t.pages[i])\n        return 0",
        "                continue\n        return 0",
    ),
    Mutant("two loads of one page", TIERS, "self.index.nodes[n].loading = 1", "self.index.nodes[n].loading = 0"),
    Mutant(
        "device page leaked when a load comes second",
        TIERS,
        "                self.device.give(t.pages[i])\n",
        "                pass\n",
    ),
    Mutant(
        "referenced node left on the eviction list",
        INDEX,
        "if node.refs == 0 and node.dev >= 0:\n            self.dunlink(n)",
        "if False:\n            self.dunlink(n)",
    ),
    Mutant(
        "double publish of a page",
        INDEX,
        "self.changes.append((True,",
        'self.changes.extend([(True, self.key_of(n), None, b"")]); self.changes.append((True,',
    ),
    Mutant("host child not counted off", INDEX, "self.nodes[node.parent].host_children -= 1", "pass"),
    Mutant(
        "page key without its parent's",
        "cache/hashing.pyx",
        "return tsd_page_hash(parent, <const uint64_t*>tokens,",
        "parent.lo = parent.hi = 0; return tsd_page_hash(parent, <const uint64_t*>tokens,",
    ),
    Mutant(
        "released slots announced again",
        "scheduler/plan.pyx",
        "self.num_deltas = self.num_released = self.num_zero = 0",
        "self.num_deltas = self.num_zero = 0",
    ),
)


def package_root() -> Path:
    """The folder that holds scheduler/ and cache/ with their sources."""
    found = importlib.util.find_spec("tsd.scheduler")
    assert found is not None and found.origin is not None
    return Path(found.origin).resolve().parent.parent


def plant(mutant: Mutant, where: Path) -> str:
    """Lays out `where/tsd` with the mutated file built; returns an error text or nothing."""
    root = package_root()
    for room in ("cache", "scheduler"):
        folder = where / "tsd" / room
        folder.mkdir(parents=True)
        for entry in (root / room).iterdir():
            if entry.is_file() and entry.suffix in {".py", ".pxd", ".so", ".h"}:
                (folder / entry.name).symlink_to(entry)
    text = (root / mutant.file).read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        return f"its text occurs {text.count(mutant.old)} times in {mutant.file}"
    target = where / "tsd" / mutant.file
    target.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
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


def trial(mutant: Mutant, steps: int, seed: int) -> Verdict:
    """Runs one mutant through the profiles until it is caught or `steps` steps are done."""
    where = Path(tempfile.mkdtemp(prefix="tsd-mutant-"))
    try:
        fault = plant(mutant, where)
        if fault:
            raise RuntimeError(f"{mutant.name}: {fault}")
        environment = {**os.environ, "PYTHONPATH": str(where), "PYTHONSAFEPATH": "1"}
        each = max(1, steps // len(PROFILES))
        for turn, profile in enumerate(PROFILES):
            script = "import sys; from tsd.scheduler.simulator import main; sys.exit(main(sys.argv[1:]))"
            command = [sys.executable, "-c", script, "--steps", str(each), "--seed", str(seed), "--profile", profile]
            try:
                done = subprocess.run(
                    command, env=environment, cwd=where, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
                )
            except subprocess.TimeoutExpired:
                return Verdict(mutant, f"hang in profile {profile}", turn * each)
            if done.returncode < 0:
                return Verdict(mutant, f"killed by signal {-done.returncode}", turn * each)
            if done.returncode:
                lines = [line for line in done.stderr.splitlines() if line.strip()]
                text = next((line for line in lines if ": " in line and not line.startswith(" ")), lines[-1])
                at = next((part.split(",")[0] for part in done.stderr.split("step ")[-1:]), "0")
                return Verdict(mutant, text, turn * each + (int(at.split(";")[0]) if at.split(";")[0].isdigit() else 0))
        return Verdict(mutant, "", steps)
    finally:
        shutil.rmtree(where, ignore_errors=True)


def hunt(steps: int, seed: int, names: tuple[str, ...] = (), workers: int = 2) -> int:
    """Tries every mutant (or those named); prints a line each. Exit code 1 when more than one survives."""
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    began = time.perf_counter()
    survivors: list[str] = []
    with ThreadPoolExecutor(workers) as pool:
        for verdict in pool.map(lambda mutant: trial(mutant, steps, seed), chosen):
            if not verdict.caught_by:
                survivors.append(verdict.mutant.name)
            print(f"{verdict.mutant.name:<52} {verdict.caught_by or 'SURVIVED'} ({verdict.steps} steps)", flush=True)
    caught = len(chosen) - len(survivors)
    print(f"{caught} of {len(chosen)} mutants caught in {time.perf_counter() - began:.0f} s; survivors: {survivors}")
    return 0 if len(survivors) <= 1 else 1
