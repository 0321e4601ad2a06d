"""Measures kernel tilings on the GPU at hand and writes the table that `kernels/triton/linear.py` reads.

    python -m tsd.bench.tune_gpu --out tuned.json [--processes 14]

Every candidate is compiled by a pool of processes first (Triton's cache on disk hands the result over), then timed
one by one. Attention tilings are printed only: their choice is a constant in `kernels/triton/attention.py`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from tsd.bench.gpu_sites import (
    MODELS,
    Layer,
    LayerBuffers,
    PagedBuffers,
    gemv_plans,
    layers_of,
    skinny_plans,
)
from tsd.bench.gpu_timing import copies_for, microseconds
from tsd.kernels.triton import attention, linear

Launch = Callable[[], object]
ROWS = (1, 16, 32, 64)
COPY_RATE = 4.30e6
"""Bytes a microsecond: the copy bandwidth measured on an H200."""


class PagedCase(NamedTuple):
    model: str
    rows: int
    length: int
    query: int
    page_size: int


PAGED = (
    PagedCase("qwen3-8b", 32, 4096, 1, 64),
    PagedCase("qwen3-0.6b", 32, 4096, 1, 64),
    PagedCase("qwen3-8b", 32, 1100, 1, 64),
    PagedCase("qwen3-8b", 1, 300, 1, 64),
    PagedCase("qwen3-8b", 1, 4096, 1, 64),
    PagedCase("qwen3-8b", 256, 600, 1, 64),
    PagedCase("qwen3-8b", 32, 4096, 1, 16),
    PagedCase("qwen3-8b", 4, 4096, 2048, 64),
    PagedCase("qwen3-0.6b", 4, 4096, 2048, 64),
)
DECODE_TILINGS = [
    attention.Tiling(16, keys, warps, stages)
    for keys, warps, stages in (
        (32, 2, 7), (32, 2, 9), (64, 2, 5), (64, 4, 3), (64, 4, 5), (64, 4, 7), (64, 4, 9), (128, 4, 5), (128, 8, 5),
    )
]  # fmt: skip
PREFILL_TILINGS = [
    attention.Tiling(rows, keys, warps, stages)
    for rows, keys, warps, stages in (
        (64, 64, 4, 3), (64, 64, 4, 5), (128, 64, 8, 3), (128, 64, 8, 5), (128, 128, 8, 3), (128, 64, 4, 5),
    )
]  # fmt: skip


def linear_tasks() -> list[tuple[Layer, int, linear.Gemv | linear.Skinny]]:
    """Every (layer, rows, tiling) worth timing."""
    layers = {layer for model in MODELS.values() for layer in layers_of(model)}
    found: list[tuple[Layer, int, linear.Gemv | linear.Skinny]] = []
    for layer in sorted(layers, key=lambda layer: (layer.k, layer.n, layer.gated)):
        for rows in ROWS:
            plans = gemv_plans(layer) if rows == 1 else skinny_plans(layer, rows)
            found += [(layer, rows, plan) for plan in plans]
    return found


def paged_tilings(case: PagedCase) -> list[attention.Tiling]:
    return DECODE_TILINGS if case.query == 1 else PREFILL_TILINGS


def compile_share(share: int, shares: int) -> list[str]:
    """Compiles every `shares`-th candidate by launching it on small inputs; returns what failed.

    Sizes that are run-time arguments shrink; those that the kernels are compiled for stay.
    """
    failed = []
    for layer, rows, plan in linear_tasks()[share::shares]:
        try:
            LayerBuffers(replace(layer, n=256), rows, 1).launches(plan)[0]()
        except Exception as error:  # a tiling that does not fit is simply not a candidate
            failed.append(f"{layer.role} {rows} {plan}: {type(error).__name__}")
    cases = [(case, tiling) for case in PAGED for tiling in paged_tilings(case)]
    for case, tiling in cases[share::shares]:
        try:
            launch_paged(case._replace(rows=min(case.rows, 32), length=128, query=min(case.query, 64)), tiling, 1)[0]()
        except Exception as error:
            failed.append(f"{case} {tiling}: {type(error).__name__}")
    torch.cuda.synchronize()
    return failed


def launch_paged(case: PagedCase, tiling: attention.Tiling, copies: int, target: int = 528) -> list[Launch]:
    """Launches of one attention case over rotating caches."""
    model = MODELS[case.model]
    buffers = PagedBuffers(model, case.rows, case.length, case.page_size, case.query, copies)
    return paged_launches(buffers, case, tiling, target)


def paged_launches(buffers: PagedBuffers, case: PagedCase, tiling: attention.Tiling, target: int) -> list[Launch]:
    splits = attention.splits_for(case.rows, buffers.model.num_kv) if case.query == 1 else 1
    return buffers.launches(tiling, decode=case.query == 1, splits=splits, target=target)


def compile_all(processes: int) -> list[str]:
    """Fills Triton's cache; returns what failed."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes) as pool:
        shares = pool.starmap(compile_share, [(share, processes) for share in range(processes)])
    return [line for share in shares for line in share]


def tune_linear(deadline: float) -> tuple[dict[str, dict[str, int | float | str]], list[str]]:
    """Times the tilings of each layer; returns the table of the best and a report line a site."""
    groups: dict[tuple[Layer, int], list[linear.Gemv | linear.Skinny]] = {}
    for layer, rows, plan in linear_tasks():
        groups.setdefault((layer, rows), []).append(plan)
    table: dict[str, dict[str, int | float | str]] = {}
    lines = []
    for (layer, rows), plans in groups.items():
        if time.monotonic() > deadline:
            lines.append("out of time")
            break
        buffers = LayerBuffers(layer, rows, copies_for(layer.nbytes))
        library = microseconds(buffers.library_launches(), replays=5)
        timed: list[tuple[float, linear.Gemv | linear.Skinny]] = []
        for plan in plans:
            try:
                timed.append((microseconds(buffers.launches(plan), replays=3), plan))
            except Exception as error:
                lines.append(f"failed {layer} {rows} {plan}: {error}")
        timed.sort(key=lambda pair: pair[0])
        best = timed[0]
        key = linear.site(layer.n, layer.k, rows, gated=layer.gated)
        table[key] = {**linear.dump_plan(best[1]), "us": round(best[0], 2)}
        floor = layer.nbytes / COPY_RATE
        lines.append(
            f"{key:18} {layer.role:8} {best[0]:7.2f} us {100 * floor / best[0]:4.0f}% library {library:7.2f}  "
            + " | ".join(f"{us:.2f} {tuple(linear.dump_plan(plan).values())[1:]}" for us, plan in timed[:4])
        )
        del buffers
    return table, lines


def tune_paged() -> list[str]:
    """Times attention tilings; a report line a case."""
    lines = []
    for case in PAGED:
        model = MODELS[case.model]
        nbytes = case.rows * case.length * model.num_kv * model.head_dim * 4
        flops = 4 * case.rows * case.query * (case.length - case.query / 2) * model.num_q * model.head_dim
        buffers = PagedBuffers(model, case.rows, case.length, case.page_size, case.query, copies_for(nbytes))
        timed = []
        for tiling in paged_tilings(case):
            for target in (264, 528, 1056) if case.query == 1 else (528,):
                try:
                    launches = paged_launches(buffers, case, tiling, target)
                    us = microseconds(launches, replays=3, fill=8)
                    timed.append((us, tiling, target))
                except Exception as error:
                    lines.append(f"failed {case} {tiling}: {error}")
        timed.sort(key=lambda entry: entry[0])
        for us, tiling, target in timed[:5]:
            rate = f"{nbytes / us / 1e6:.2f} TB/s" if case.query == 1 else f"{flops / us / 1e6:.0f} TFLOP/s"
            lines.append(
                f"{'/'.join(map(str, case)):32} {us:8.2f} us {rate} "
                f"{tiling.rows},{tiling.keys},{tiling.warps},{tiling.stages} {target}"
            )
        del buffers
    return lines


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tune_gpu", description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="where the table goes (JSON)")
    parser.add_argument("--processes", type=int, default=14, help="compilers at a time")
    parser.add_argument("--compile-only", action="store_true", help="fill Triton's cache and stop")
    parser.add_argument("--skip-compile", action="store_true", help="trust the cache")
    parser.add_argument("--seconds", type=float, default=120, help="stop timing layers after this long")
    options = parser.parse_args(argv)
    begin = time.monotonic()
    if options.compile_only:
        print("\n".join(compile_all(options.processes)))
        return 0
    for line in [] if options.skip_compile else compile_all(options.processes):
        print("no", line)
    print(f"compiled in {time.monotonic() - begin:.1f} s", flush=True)
    for line in tune_paged():
        print(line, flush=True)
    table, lines = tune_linear(begin + options.seconds)
    options.out.write_text(json.dumps(table, indent=1) + "\n")
    print("\n".join(lines))
    print(f"done in {time.monotonic() - begin:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
