"""Measures kernel tilings on the GPU at hand and updates the table that `kernels/triton/linear.py` reads.

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
    slab_plans,
    tile_plans,
)
from tsd.bench.gpu_timing import copies_for, microseconds
from tsd.kernels.triton import linear
from tsd.kernels.triton.norm import rms
from tsd.kernels.triton.tiling import Tiling

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
    PagedCase("qwen3-8b", 4, 4096, 2048, 64),
    PagedCase("qwen3-0.6b", 4, 4096, 2048, 64),
    PagedCase("qwen3-8b", 3, 3300, 230, 64),
    PagedCase("qwen3-8b", 32, 3300, 230, 64),
    PagedCase("qwen3-0.6b", 4, 1024, 1024, 64),
)
TILINGS = [
    Tiling(rows, keys, warps, stages)
    for rows, keys, warps, stages in (
        (64, 64, 4, 5), (64, 64, 4, 7), (64, 128, 4, 5), (64, 32, 4, 7), (128, 64, 8, 5), (128, 64, 8, 7),
    )
]  # fmt: skip


class Task(NamedTuple):
    """A layer with a number of rows, alone or (`normed`) with the norm that follows it."""

    layer: Layer
    rows: int
    normed: bool


def linear_tasks(rows_wanted: tuple[int, ...] = ROWS) -> list[tuple[Task, linear.Tiled]]:
    """Every tiling worth timing."""
    layers = {layer for model in MODELS.values() for layer in layers_of(model)}
    found: list[tuple[Task, linear.Tiled]] = []
    for layer in sorted(layers, key=lambda layer: (layer.k, layer.n, layer.gated)):
        for rows in rows_wanted:
            plans: list[linear.Tiled] = [*gemv_plans(layer)] if rows == 1 else []
            if 1 < rows <= 128:
                plans += [*skinny_plans(layer, rows), *slab_plans(layer, rows)]
            if rows >= 128 and layer.role != "head":
                plans += tile_plans(layer, rows)
            found += [(Task(layer, rows, False), plan) for plan in plans]
            if layer.residual and 1 < rows <= 128:
                found += [(Task(layer, rows, True), plan) for plan in slab_plans(layer, rows, normed=True)]
    return found


def compile_share(share: int, shares: int, rows_wanted: tuple[int, ...], attention: bool) -> list[str]:
    """Compiles every `shares`-th candidate by launching it on small inputs; returns what failed.

    Sizes that are run-time arguments shrink; those that the kernels are compiled for stay.
    """
    failed = []
    for (layer, rows, normed), plan in linear_tasks(rows_wanted)[share::shares]:
        try:
            # Merging is compiled for the width of its rows.
            buffers = LayerBuffers(layer if normed else replace(layer, n=256), rows, 1)
            _launches(buffers, plan, normed)[0]()
        except Exception as error:  # a tiling that does not fit is simply not a candidate
            failed.append(f"{layer.role} {rows} {plan}: {type(error).__name__}")
    cases = dict.fromkeys((case._replace(length=128, query=64), tiling) for case in PAGED for tiling in TILINGS)
    for case, tiling in list(cases)[share::shares] if attention else []:
        try:
            PagedBuffers(MODELS[case.model], *case[1:3], case.page_size, case.query, 1).launches(tiling)[0]()
        except Exception as error:
            failed.append(f"{case} {tiling}: {type(error).__name__}")
    torch.cuda.synchronize()
    return failed


def compile_all(processes: int, rows_wanted: tuple[int, ...], attention: bool) -> list[str]:
    """Fills Triton's cache; returns what failed."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes) as pool:
        shares = pool.starmap(compile_share, [(share, processes, rows_wanted, attention) for share in range(processes)])
    return [line for share in shares for line in share]


def tune_linear(
    deadline: float, rows_wanted: tuple[int, ...]
) -> tuple[dict[str, dict[str, int | float | str]], list[str]]:
    """Times the tilings of each layer; returns the table of the best and a report line a site."""
    groups: dict[Task, list[linear.Tiled]] = {}
    for task, plan in linear_tasks(rows_wanted):
        groups.setdefault(task, []).append(plan)
    table: dict[str, dict[str, int | float | str]] = {}
    lines = []
    for task, plans in groups.items():
        layer, rows, normed = task
        if time.monotonic() > deadline:
            lines.append("out of time")
            break
        buffers = LayerBuffers(layer, rows, copies_for(layer.nbytes))
        key = linear.site(layer.n, layer.k, rows, gated=layer.gated, normed=normed)
        alone = (
            linear.load_plan(table.get(linear.site(layer.n, layer.k, rows), {"kernel": "library"})) if normed else None
        )
        # What a tiling has to beat: the vendor's product, or the layer and the norm one after the other.
        other = microseconds(_one_after_other(buffers, alone) if normed else buffers.library_launches(), replays=5)
        timed: list[tuple[float, linear.Tiled]] = []
        for plan in plans:
            try:
                timed.append((microseconds(_launches(buffers, plan, normed), replays=3), plan))
            except Exception as error:
                lines.append(f"failed {layer} {rows} {plan}: {error}")
        timed.sort(key=lambda pair: pair[0])
        best: tuple[float, linear.Plan] = timed[0] if timed and timed[0][0] < other else (other, None)
        table[key] = {**linear.dump_plan(best[1]), "us": round(best[0], 2)}
        floor = layer.nbytes / COPY_RATE
        lines.append(
            f"{key:18} {layer.role:8} {best[0]:7.2f} us {100 * floor / best[0]:4.0f}% other {other:7.2f}  "
            + " | ".join(f"{us:.2f} {tuple(linear.dump_plan(plan).values())}" for us, plan in timed[:4])
        )
        del buffers
    return table, lines


def _launches(buffers: LayerBuffers, plan: linear.Tiled, normed: bool) -> list[Callable[[], object]]:
    return buffers.normed_launches(plan) if normed and isinstance(plan, linear.Slab) else buffers.launches(plan)


def _one_after_other(buffers: LayerBuffers, plan: linear.Plan) -> list[Callable[[], object]]:
    """The layer by its best tiling (or the library), then the norm that follows."""
    first = buffers.launches(plan) if plan is not None else buffers.library_launches()

    def both(launch: Callable[[], object]) -> Callable[[], object]:
        def call() -> object:
            launch()
            return rms(buffers.y, buffers.following, 1e-6)

        return call

    return [both(launch) for launch in first]


def tune_paged() -> list[str]:
    """Times tilings of prefill; a report line each."""
    lines = []
    for case in PAGED:
        model = MODELS[case.model]
        nbytes = case.rows * case.length * model.num_kv * model.head_dim * 4
        flops = 4 * case.rows * case.query * (case.length - case.query / 2) * model.num_q * model.head_dim
        buffers = PagedBuffers(model, case.rows, case.length, case.page_size, case.query, copies_for(nbytes))
        timed: list[tuple[float, Tiling]] = []
        for tiling in TILINGS:
            try:
                timed.append((microseconds(buffers.launches(tiling), replays=3, fill=8), tiling))
            except Exception as error:
                lines.append(f"failed {case} {tiling}: {error}")
        timed.sort(key=lambda entry: entry[0])
        lines += [
            f"{'/'.join(map(str, case)):32} {us:8.2f} us {flops / us / 1e6:.0f} TFLOP/s {tuple(t)}" for us, t in timed
        ]
        del buffers
    return lines


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tune_gpu", description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="where the table goes (JSON)")
    parser.add_argument("--processes", type=int, default=14, help="compilers at a time")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="numbers of rows to tune layers for")
    parser.add_argument("--compile-only", action="store_true", help="fill Triton's cache and stop")
    parser.add_argument("--layers-only", action="store_true", help="no attention")
    parser.add_argument("--skip-compile", action="store_true", help="trust the cache")
    parser.add_argument("--seconds", type=float, default=120, help="stop timing layers after this long")
    options = parser.parse_args(argv)
    begin = time.monotonic()
    wanted = (options.processes, tuple(options.rows), not options.layers_only)
    if options.compile_only:
        print("\n".join(compile_all(*wanted)))
        return 0
    for line in [] if options.skip_compile else compile_all(*wanted):
        print("no", line)
    print(f"compiled in {time.monotonic() - begin:.1f} s", flush=True)
    for line in [] if options.layers_only else tune_paged():
        print(line, flush=True)
    table, lines = tune_linear(begin + options.seconds, tuple(options.rows))
    known = json.loads(options.out.read_text()) if options.out.is_file() else {}
    options.out.write_text(json.dumps(dict(sorted({**known, **table}.items())), indent=1) + "\n")
    print("\n".join(lines))
    print(f"done in {time.monotonic() - begin:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
