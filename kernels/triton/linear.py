"""Linear layers: which kernel and tiling serve how many rows. Measured tilings lie in `<gpu name>.json`."""

from __future__ import annotations

import json
from bisect import bisect_left
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib.resources import files

import torch
import torch.nn.functional as F
import triton

from tsd.kernels.platform import detect
from tsd.kernels.triton.gemv import gemv_kernel
from tsd.kernels.triton.norm import rms, silu_mul
from tsd.kernels.triton.skinny import skinny_kernel
from tsd.kernels.triton.slabs import Slab, multiply, multiply_add_norm, padded_rows
from tsd.kernels.triton.target import dependent, dot_precision
from tsd.kernels.triton.tiles import Tile, multiply_tiles
from tsd.kernels.triton.workspace import workspace
from tsd.kernels.weight import Weight

TUNED_ROWS = (1, 16, 32, 64, 128, 192, 256, 320, 384, 512)
"""Numbers of rows that layers are tuned for; each stands for those down to the next. More are the library's."""


@dataclass(frozen=True)
class Gemv:
    """Tiling of `gemv_kernel`: rows of W a program, columns a tile."""

    bn: int
    bk: int
    warps: int


@dataclass(frozen=True)
class Skinny:
    """Tiling of `skinny_kernel`; `prefetch` columns are asked for before the wait on the kernel before."""

    bn: int
    bk: int
    split: int
    warps: int
    stages: int
    prefetch: int


Tiled = Gemv | Skinny | Slab | Tile
Plan = Tiled | None
"""None is the library product, with the norm and the activation as kernels of their own."""


def bucket(rows: int) -> int:
    """The tuned number of rows that stands for `rows`, at most the largest."""
    return TUNED_ROWS[bisect_left(TUNED_ROWS, rows)]


def site(n: int, k: int, rows: int, *, gated: bool = False, normed: bool = False) -> str:
    """Key of a layer in the tuning table: n output columns (of a gated layer, after gating); `normed` with the norm
    that follows."""
    return f"{n}x{k}{'g' if gated else '+' if normed else ''}@{bucket(rows)}"


def default_plan(n: int, k: int, rows: int, *, gated: bool) -> Plan:
    """What to run for a shape that nobody has tuned."""
    lanes = 2 if gated else 1
    if rows == 1:
        bk = min(triton.next_power_of_2(k), 4096)
        bn = max(1, min(8, 8192 // (bk * lanes), triton.next_power_of_2(triton.cdiv(n, 264))))
        return Gemv(bn, bk, 4)
    return None


@cache
def tuned(device_name: str) -> dict[str, Plan]:
    """The measured table of a GPU by its name, as `site` -> plan; empty for one nobody has measured."""
    name = device_name.lower().replace(" ", "_") + ".json"
    table = files("tsd.kernels.triton") / name
    if not table.is_file():
        return {}
    return {key: load_plan(entry) for key, entry in json.loads(table.read_text()).items()}


def load_plan(entry: dict[str, int | float | str]) -> Plan:
    """From the table's JSON; see `dump_plan`. `us`, the measured time, is for the reader."""
    kinds: dict[str, type[Gemv] | type[Skinny] | type[Slab] | type[Tile]]
    kinds = {"gemv": Gemv, "skinny": Skinny, "slab": Slab, "tile": Tile}
    kind = kinds.get(str(entry["kernel"]))
    return kind(**{field.name: int(entry.get(field.name, 0)) for field in fields(kind)}) if kind else None


def dump_plan(plan: Plan) -> dict[str, int | float | str]:
    if plan is None:
        return {"kernel": "library"}
    return {"kernel": type(plan).__name__.lower(), **asdict(plan)}


@cache
def plan_for(device: torch.device, n: int, k: int, rows: int, gated: bool) -> Plan:
    """The tiling for `rows` rows (a bucket), tuned or by rule."""
    platform = detect(str(device))
    if platform.kind == "cuda":
        found = tuned(platform.name)
        key = site(n, k, rows, gated=gated)
        if key in found:
            return found[key]
    return default_plan(n, k, rows, gated=gated)


@cache
def normed_plan(device: torch.device, n: int, k: int, rows: int) -> Slab | None:
    """The tiling that serves `rows` rows (a bucket) together with the norm that follows, where that was faster."""
    platform = detect(str(device))
    if platform.kind != "cuda":
        return None
    found = tuned(platform.name).get(site(n, k, rows, normed=True))
    return found if isinstance(found, Slab) else None


def _plan(x: torch.Tensor, n: int, k: int, *, gated: bool) -> Plan:
    """What serves x; tilings for several rows were measured on tensor cores, which float32 does without."""
    rows = x.shape[0]
    if not 0 < rows <= TUNED_ROWS[-1] or (rows > 1 and x.dtype == torch.float32):
        return None
    return plan_for(x.device, n, k, bucket(rows), gated)


def launch(
    plan: Tiled,
    x: torch.Tensor,
    w: torch.Tensor,
    y: torch.Tensor,
    *,
    bias: torch.Tensor | None,
    norm: torch.Tensor | None,
    eps: float,
    act: bool,
    residual: torch.Tensor | None,
    gated: bool,
) -> None:
    """Runs one tiling; x [M, K or 2K], w [N or 2N, K], y [M, N], all contiguous.

    What a tiling does not fuse is a launch before it: one row fuses norm and activation, several rows neither.
    """
    if isinstance(plan, Gemv):
        _launch_gemv(plan, x, w, y, bias, norm, eps, act, residual, gated)
        return
    if act:
        x = silu_mul(x)
    if norm is not None:
        x = rms(x, norm, eps)
    if isinstance(plan, Tile):
        multiply_tiles(plan, x, w, y, bias=bias, residual=residual, gated=gated)
        return
    if isinstance(plan, Slab):
        multiply(plan, x, w, y, bias=bias, residual=residual, gated=gated)
        return
    rows, n = y.shape
    pdl, dependency = dependent(x.device)
    blocks = triton.cdiv(n, plan.bn)
    padded = padded_rows(rows)
    scratch = workspace(x.device)
    partial = scratch.floats(plan.split * blocks * padded * 2 * plan.bn) if plan.split > 1 else x
    skinny_kernel[(blocks, plan.split)](
        x,
        w,
        bias if bias is not None else x,
        residual if residual is not None else x,
        y,
        partial,
        scratch.counters,
        rows,
        n,
        K=w.shape[1],
        BM=padded,
        BN=plan.bn,
        BK=plan.bk,
        SPLIT=plan.split,
        STAGES=plan.stages,
        PREFETCH=plan.prefetch,
        BIAS=bias is not None,
        RESIDUAL=residual is not None,
        GATED=gated,
        PRECISION=dot_precision(x.dtype),
        PDL=pdl,
        num_warps=plan.warps,
        num_stages=plan.stages,
        **dependency,
    )


def _launch_gemv(
    plan: Gemv,
    x: torch.Tensor,
    w: torch.Tensor,
    y: torch.Tensor,
    bias: torch.Tensor | None,
    norm: torch.Tensor | None,
    eps: float,
    act: bool,
    residual: torch.Tensor | None,
    gated: bool,
) -> None:
    n = y.shape[1]
    pdl, dependency = dependent(x.device)
    gemv_kernel[(triton.cdiv(n, plan.bn),)](
        x,
        w,
        bias if bias is not None else x,
        norm if norm is not None else x,
        residual if residual is not None else x,
        y,
        n,
        eps,
        K=w.shape[1],
        BN=plan.bn,
        BK=plan.bk,
        NORM=norm is not None,
        ACT=act,
        BIAS=bias is not None,
        RESIDUAL=residual is not None,
        GATED=gated,
        PDL=pdl,
        num_warps=plan.warps,
        **dependency,
    )


def linear(
    x: torch.Tensor,
    weight: Weight,
    *,
    bias: torch.Tensor | None = None,
    norm: torch.Tensor | None = None,
    eps: float = 0.0,
    act: str | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """As `gemm.reference.linear`, dense weights only. Raises ValueError for an unknown `act`.

    Where the library serves, the result takes the place of `residual`.
    """
    if act not in (None, "silu_mul"):
        raise ValueError(f"unknown activation {act!r}")
    w = weight.tensors["w"]
    n, k = w.shape
    rows = x.shape[0]
    plan = _plan(x, n, k, gated=False)
    if act is not None and norm is not None:
        x, act = silu_mul(x), None
    if plan is not None:
        y = torch.empty((rows, n), dtype=x.dtype, device=x.device)
        launch(plan, x, w, y, bias=bias, norm=norm, eps=eps, act=act is not None, residual=residual, gated=False)
        return y
    return library(x, w, bias=bias, norm=norm, eps=eps, act=act is not None, residual=residual)


def add_norm(
    x: torch.Tensor,
    weight: Weight,
    *,
    residual: torch.Tensor,
    norm: torch.Tensor,
    eps: float,
    bias: torch.Tensor | None = None,
    act: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """As `gemm.reference.add_norm`, dense weights only; normed for those numbers of rows where joining was faster."""
    w = weight.tensors["w"]
    rows = x.shape[0]
    plan = None
    if bias is None and 1 < rows <= TUNED_ROWS[-1] and x.dtype != torch.float32:
        plan = normed_plan(x.device, *w.shape, bucket(rows))
    if plan is None:
        return linear(x, weight, bias=bias, act=act, residual=residual), None
    if act is not None:
        x = silu_mul(x)
    return multiply_add_norm(plan, x, w, residual, norm, eps)


def library(
    x: torch.Tensor,
    w: torch.Tensor,
    *,
    bias: torch.Tensor | None,
    norm: torch.Tensor | None,
    eps: float,
    act: bool,
    residual: torch.Tensor | None,
) -> torch.Tensor:
    """Norm and activation by themselves, then the vendor's product, which adds the bias or the residual."""
    if x.shape[0] == 0:
        return x.new_empty((0, w.shape[0]))
    if act:
        x = silu_mul(x)
    if norm is not None:
        x = rms(x, norm, eps)
    if residual is None:
        return F.linear(x, w, bias)
    y = residual.addmm_(x, w.t())  # into its memory: else the library copies it first
    return y if bias is None else y.add_(bias)


def gated(x: torch.Tensor, weight: Weight, *, norm: torch.Tensor | None = None, eps: float = 0.0) -> torch.Tensor:
    """As `gemm.reference.gated`, dense weights only."""
    w = weight.tensors["w"]
    n, k = w.shape[0] // 2, w.shape[1]
    rows = x.shape[0]
    plan = _plan(x, n, k, gated=True)
    if plan is None:
        return silu_mul(library(x, w, bias=None, norm=norm, eps=eps, act=False, residual=None))
    y = torch.empty((rows, n), dtype=x.dtype, device=x.device)
    launch(plan, x, w, y, bias=None, norm=norm, eps=eps, act=False, residual=None, gated=True)
    return y
