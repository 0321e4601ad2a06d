"""Compiles the Cython parts. Everything else about the package is in pyproject.toml.

The folders are top-level while the import names are `tsd.*`; the link `build/view/tsd -> ../..`
lets Cython, mypy and an uninstalled checkout follow that mapping.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup

ROOT = Path(__file__).resolve().parent
os.chdir(ROOT)


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
    found: list[Extension] = [
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
                extra_compile_args=["-O3"],
            )
        )
    found.append(
        Extension(
            "tsd.kernels.cpu.native",
            ["kernels/cpu/native.pyx"]
            + [f"kernels/cpu/{name}.c" for name in ("dispatch", "pool", "isa_plain", "isa_avx2", "isa_avx512")],
            include_dirs=["kernels/cpu"],
            depends=[str(path) for path in Path("kernels/cpu").glob("*.h")],
            # no contraction: a row's bits must not depend on which tile size the compiler chose to fuse in
            extra_compile_args=["-O3", "-std=gnu11", "-ffp-contract=off", "-fno-math-errno", "-pthread"],
            extra_link_args=["-pthread"],
        )
    )
    return found


setup(
    # The C kernels take a while each: one compiler a core.
    options={"build_ext": {"parallel": os.cpu_count() or 1}},
    ext_modules=cythonize(
        extensions(),
        include_path=[link_view()],
        compiler_directives={
            "language_level": "3",
            "boundscheck": False,
            "wraparound": False,
            "cdivision": True,
        },
        build_dir="build/cython",
    ),
)
