"""Compiles the Cython parts. Everything else about the package is in pyproject.toml.

The folders are top-level while the import names are `tsd.*`; the link `build/view/tsd -> ../..`
lets Cython, mypy and an uninstalled checkout follow that mapping.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
os.chdir(ROOT)
CORES = os.cpu_count() or 1


class Build(build_ext):
    """One compiler a core, also for the sources of one extension: those of the C kernels take a while each."""

    def build_extensions(self) -> None:
        one_by_one: Callable[..., list[str]] = self.compiler.compile
        with ThreadPoolExecutor(CORES) as compilers:

            def compile(sources: list[str], **options: Any) -> list[str]:
                jobs = [compilers.submit(one_by_one, [source], **options) for source in sources]
                return [file for job in jobs for file in job.result()]

            self.compiler.compile = compile
            super().build_extensions()


def link_view() -> str:
    """Makes `build/view/tsd` point at this checkout and returns the folder to search."""
    view = ROOT / "build" / "view"
    view.mkdir(parents=True, exist_ok=True)
    link = view / "tsd"
    if not link.is_symlink():
        link.symlink_to(Path("..") / "..")
    return str(view)


def extensions() -> list[Extension]:
    """One explicit Extension for each compiled module."""
    native = [f"kernels/cpu/{name}.c" for name in ("isa_plain", "isa_avx512", "isa_avx2", "dispatch", "pool")]
    # What takes longest comes first. No debug information: a fifth of the time.
    found: list[Extension] = [
        Extension(
            "tsd.kernels.cpu.native",
            [*native, "kernels/cpu/native.pyx"],
            include_dirs=["kernels/cpu"],
            depends=[str(path) for path in Path("kernels/cpu").glob("*.h")],
            # no contraction: a row's bits must not depend on which tile size the compiler chose to fuse in
            extra_compile_args=["-O3", "-g0", "-std=gnu11", "-ffp-contract=off", "-fno-math-errno", "-pthread"],
            extra_link_args=["-pthread"],
        ),
        Extension("tsd.engine.executor.wake", ["engine/executor/wake.pyx"], libraries=["dl"]),
    ]
    for name in (
        "engine/executor/blocks",
        "engine/executor/greedy",
        "engine/bytes_of",
        "cache/hashing",
        "cache/pool",
        "cache/fence",
        "cache/node_table",
        "cache/index",
        "cache/index_audit",
        "cache/disk_map",
        "cache/probe",
        "scheduler/plan",
        "scheduler/transfer",
        "scheduler/requests",
        "scheduler/tiers",
        "scheduler/pages",
        "scheduler/retraction",
        "scheduler/batch",
        "scheduler/pacing",
        "scheduler/admission",
        "scheduler/landing",
        "scheduler/ending",
        "scheduler/moves",
        "scheduler/figures",
        "scheduler/withheld",
        "scheduler/core",
        "scheduler/audit",
        "scheduler/view",
        "scheduler/simulation/dice",
        "scheduler/simulation/oracle",
        "scheduler/simulation/clients",
        "scheduler/simulation/executor",
        "scheduler/simulation/copies",
        "scheduler/simulation/world",
    ):
        found.append(
            Extension(
                "tsd." + name.replace("/", "."),
                [f"{name}.pyx"],
                include_dirs=["cache", numpy.get_include()],
                define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION")],
                depends=["cache/page_hash.h"],
                extra_compile_args=["-O3", "-g0"],
            )
        )
    return found


setup(
    cmdclass={"build_ext": Build},
    options={"build_ext": {"parallel": CORES}},
    ext_modules=cythonize(
        extensions(),
        include_path=[link_view()],
        nthreads=CORES,
        compiler_directives={
            "language_level": "3",
            "boundscheck": False,
            "wraparound": False,
            "cdivision": True,
        },
        build_dir="build/cython",
    ),
)
