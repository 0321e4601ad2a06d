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
    for keys, warps, stages in ((32, 2, 7), (64, 2, 5), (64, 4, 3), (64, 4, 5), (64, 4, 7), (128, 4, 5))
]
PREFILL_TILINGS = [
    attention.Tiling(rows, keys, warps, stages)
    for rows, keys, warps, stages in (
        (64, 64, 4, 5), (64, 64, 4, 7), (64, 128, 4, 5), (64, 32, 4, 7), (128, 64, 8, 5), (128, 64, 8, 7),
    )
]  # fmt: skip


class PagedChoice(NamedTuple):
    """A tiling and how decode is cut; see `attention.run`."""

    tiling: attention.Tiling
    target: int
    floor: int
    ahead: int


def paged_choices(case: PagedCase) -> list[PagedChoice]:
    if case.query > 1:
        return [PagedChoice(tiling, 264, 128, 0) for tiling in PREFILL_TILINGS]
    if case.rows == 1:
        cuts = [(264, floor, ahead) for floor in (64, 128, 256, 512) for ahead in (0, 128)]
    else:
        cuts = [(target, 128, ahead) for target in (132, 264, 396, 528) for ahead in (0, 128)]
    return [PagedChoice(tiling, *cut) for tiling in DECODE_TILINGS for cut in cuts]


def linear_tasks(rows_wanted: tuple[int, ...] = ROWS) -> list[tuple[Layer, int, linear.Gemv | linear.Skinny]]:
    """Every (layer, rows, tiling) worth timing."""
    layers = {layer for model in MODELS.values() for layer in layers_of(model)}
    found: list[tuple[Layer, int, linear.Gemv | linear.Skinny]] = []
    for layer in sorted(layers, key=lambda layer: (layer.k, layer.n, layer.gated)):
        for rows in rows_wanted:
            plans = gemv_plans(layer) if rows == 1 else skinny_plans(layer, rows)
            found += [(layer, rows, plan) for plan in plans]
    return found


def compile_share(share: int, shares: int, rows_wanted: tuple[int, ...]) -> list[str]:
    """Compiles every `shares`-th candidate by launching it on small inputs; returns what failed.

    Sizes that are run-time arguments shrink; those that the kernels are compiled for stay.
    """
    failed = []
    for layer, rows, plan in linear_tasks(rows_wanted)[share::shares]:
        try:
            LayerBuffers(replace(layer, n=256), rows, 1).launches(plan)[0]()
        except Exception as error:  # a tiling that does not fit is simply not a candidate
            failed.append(f"{layer.role} {rows} {plan}: {type(error).__name__}")
    cases = dict.fromkeys(
        (case._replace(rows=min(case.rows, 32), length=128, query=min(case.query, 64)), choice._replace(target=264))
        for case in PAGED
        for choice in paged_choices(case)
    )
    for case, choice in list(cases)[share::shares]:
        try:
            paged_launches(PagedBuffers(MODELS[case.model], *case[1:3], case.page_size, case.query, 1), case, choice)[
                0
            ]()
        except Exception as error:
            failed.append(f"{case} {choice}: {type(error).__name__}")
    torch.cuda.synchronize()
    return failed


def paged_launches(buffers: PagedBuffers, case: PagedCase, choice: PagedChoice) -> list[Launch]:
    """Launches of one attention case over rotating caches."""
    splits = attention.splits_for(case.rows, buffers.model.num_kv) if case.query == 1 else 1
    return buffers.launches(
        choice.tiling,
        decode=case.query == 1,
        splits=splits,
        floor=choice.floor,
        target=choice.target,
        ahead=choice.ahead,
    )


def compile_all(processes: int, rows_wanted: tuple[int, ...]) -> list[str]:
    """Fills Triton's cache; returns what failed."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes) as pool:
        shares = pool.starmap(compile_share, [(share, processes, rows_wanted) for share in range(processes)])
    return [line for share in shares for line in share]


def tune_linear(
    deadline: float, rows_wanted: tuple[int, ...]
) -> tuple[dict[str, dict[str, int | float | str]], list[str]]:
    """Times the tilings of each layer; returns the table of the best and a report line a site."""
    groups: dict[tuple[Layer, int], list[linear.Gemv | linear.Skinny]] = {}
    for layer, rows, plan in linear_tasks(rows_wanted):
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
        best: tuple[float, linear.Plan] = timed[0] if timed[0][0] < library else (library, None)
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
        timed: list[tuple[float, PagedChoice]] = []
        for choice in paged_choices(case):
            try:
                timed.append((microseconds(paged_launches(buffers, case, choice), replays=3, fill=8), choice))
            except Exception as error:
                lines.append(f"failed {case} {choice}: {error}")
        timed.sort(key=lambda entry: entry[0])
        for us, (tiling, *cut) in timed[:6]:
            rate = f"{nbytes / us / 1e6:.2f} TB/s" if case.query == 1 else f"{flops / us / 1e6:.0f} TFLOP/s"
            shape = f"{tiling.rows},{tiling.keys},{tiling.warps},{tiling.stages}"
            lines.append(f"{'/'.join(map(str, case)):32} {us:8.2f} us {rate} {shape} {cut}")
        del buffers
    return lines


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tune_gpu", description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="where the table goes (JSON)")
    parser.add_argument("--processes", type=int, default=14, help="compilers at a time")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="numbers of rows to tune layers for")
    parser.add_argument("--compile-only", action="store_true", help="fill Triton's cache and stop")
    parser.add_argument("--skip-compile", action="store_true", help="trust the cache")
    parser.add_argument("--seconds", type=float, default=120, help="stop timing layers after this long")
    options = parser.parse_args(argv)
    begin = time.monotonic()
    if options.compile_only:
        print("\n".join(compile_all(options.processes, tuple(options.rows))))
        return 0
    for line in [] if options.skip_compile else compile_all(options.processes, tuple(options.rows)):
        print("no", line)
    print(f"compiled in {time.monotonic() - begin:.1f} s", flush=True)
    for line in tune_paged():
        print(line, flush=True)
    table, lines = tune_linear(begin + options.seconds, tuple(options.rows))
    known = json.loads(options.out.read_text()) if options.out.is_file() else {}
    options.out.write_text(json.dumps(dict(sorted({**known, **table}.items())), indent=1) + "\n")
    print("\n".join(lines))
    print(f"done in {time.monotonic() - begin:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
