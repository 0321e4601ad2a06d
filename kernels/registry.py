"""Choosing a kernel for an operation. Knows specs and platforms; imports a kernel only once it has won.

A choice goes: filter by device, dtype, weight method, capability and shape traits; order by objective, band and
measured timings; import the first. A kernel that fails to import loses with that reason and the next is tried.
Overrides, strongest first: the `override` argument, the environment (`TSD_KERNEL_GEMM_LINEAR` or
`TSD_KERNEL_GEMM`, read when selecting), the `config` mapping (`gemm.linear` or `gemm` -> kernel or solution).
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tsd.kernels.catalog import builtin_specs
from tsd.kernels.platform import Platform, detect
from tsd.kernels.spec import (
    BATCH_INVARIANT,
    BadOverride,
    BadTimings,
    Candidate,
    KernelSpec,
    NoKernel,
    Objective,
    Priority,
    Selection,
    Traits,
    UnknownOperation,
)

log = logging.getLogger("tsd.kernels")

PLUGIN_GROUP = "tsd.kernels"
"""Entry points of this group are functions `() -> Iterable[KernelSpec]`."""

Timings = Mapping[str, Mapping[str, float]]
"""Site key (see `site_key`) -> kernel name -> seconds a call."""


class Registry:
    """A set of specs and the choices made among them."""

    def __init__(self, specs: Iterable[KernelSpec] = (), platform: Callable[[str], Platform] = detect) -> None:
        self._specs: dict[str, dict[str, KernelSpec]] = {}
        self._platform = platform
        self._timings: Timings = {}
        self._chosen: dict[tuple[object, ...], Selection] = {}
        for spec in specs:
            self.register(spec)

    def register(self, spec: KernelSpec) -> None:
        """Adds a kernel; one of the same operation and name is replaced."""
        self._specs.setdefault(spec.op, {})[spec.name] = spec
        self._chosen.clear()

    def operations(self) -> list[str]:
        return sorted(self._specs)

    def kernels(self, op: str) -> list[KernelSpec]:
        """The kernels of an operation, best band first. Raises UnknownOperation."""
        if op not in self._specs:
            known = ", ".join(self.operations()) or "none"
            raise UnknownOperation(f"no kernel implements {op!r} (operations: {known})")
        return sorted(self._specs[op].values(), key=lambda spec: (-spec.priority, spec.name))

    def load_timings(self, path: Path) -> None:
        """Reads measured timings: JSON of site key -> kernel name -> seconds. Raises BadTimings."""
        try:
            found = json.loads(path.read_text())
            self._timings = {
                str(site): {str(name): float(value) for name, value in row.items()} for site, row in found.items()
            }
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise BadTimings(f"{path}: {error}") from error
        self._chosen.clear()

    def select(
        self,
        op: str,
        *,
        dtype: object = "float32",
        device: object = "cpu",
        weight_method: str = "",
        traits: Traits | None = None,
        objective: Objective | str = Objective.LATENCY,
        override: str = "",
        config: Mapping[str, str] | None = None,
    ) -> Selection:
        """The kernel for one call site; the same question gets the same cached answer.

        `dtype` and `device` may be torch objects or their names. Raises UnknownOperation, BadOverride or NoKernel.
        """
        dtype_name = str(dtype).removeprefix("torch.")
        device_name = str(device)
        goal = Objective(objective)
        traits = traits or {}
        forced, origin = self._override(op, override, config or {})
        key = (op, dtype_name, device_name, weight_method, tuple(sorted(traits.items())), goal, forced, origin)
        found = self._chosen.get(key)
        if found is None:
            platform = self._platform(device_name)
            site = site_key(op, platform, dtype_name, weight_method, traits)
            found = self._choose(op, platform, dtype_name, weight_method, traits, goal, forced, origin, site)
            self._chosen[key] = found
        return found

    def _override(self, op: str, argument: str, config: Mapping[str, str]) -> tuple[str, str]:
        """The forced kernel or solution and who forced it; empty strings when nobody did."""
        family = op.partition(".")[0]
        if argument:
            return argument, "argument"
        for name in (op, family):
            variable = "TSD_KERNEL_" + name.upper().replace(".", "_")
            if value := os.environ.get(variable, ""):
                if name == op or self._family_word(op, value, variable):
                    return value, variable
                return "", ""
        for name in (op, family):
            if value := config.get(name, ""):
                if name == op or self._family_word(op, value, f"config {name}"):
                    return value, f"config {name}"
                return "", ""
        return "", ""

    def _family_word(self, op: str, word: str, origin: str) -> bool:
        """Whether a word given for a whole family concerns `op`; raises when it concerns no member at all."""
        if any(word in (spec.name, spec.solution) for spec in self.kernels(op)):
            return True
        family = op.partition(".")[0]
        members = [spec for name in self._specs if name.partition(".")[0] == family for spec in self.kernels(name)]
        if not any(word in (spec.name, spec.solution) for spec in members):
            known = ", ".join(sorted({spec.solution for spec in members}))
            raise BadOverride(f"{origin}={word}: no {family} kernel has that name or solution (solutions: {known})")
        return False

    def _choose(
        self,
        op: str,
        platform: Platform,
        dtype: str,
        method: str,
        traits: Traits,
        goal: Objective,
        forced: str,
        origin: str,
        site: str,
    ) -> Selection:
        lost: dict[str, str] = {}
        fitting: list[KernelSpec] = []
        kernels = self.kernels(op)
        for spec in kernels:
            reason = misfit(spec, platform, dtype, method, traits, goal)
            if not reason and forced and forced not in (spec.name, spec.solution):
                reason = f"{origin} forces {forced}"
            if reason:
                lost[spec.name] = reason
            else:
                fitting.append(spec)
        measured = self._timings.get(site, {})
        for place, spec in enumerate(rank(fitting, goal, measured)):
            try:
                fn = _load(spec.target)
                options = {name: _load(target) for name, target in _extras(spec) if target}
            except Exception as error:  # a broken optional kernel must not stop the engine; it is logged and named
                lost[spec.name] = f"failed to load: {type(error).__name__}: {error}"
                log.warning("kernel %s %s failed to load: %s", op, spec.name, error)
                continue
            why = _why(spec, goal, forced, origin, measured, alone=len(fitting) == 1, first=place == 0)
            candidates = tuple(
                Candidate(
                    other,
                    other is spec,
                    why if other is spec else lost.get(other.name, _behind(other, spec, goal, measured)),
                )
                for other in kernels
            )
            return Selection(fn, spec, why, candidates, **options)
        reasons = "\n".join(f"  {spec.name}: {lost[spec.name]}" for spec in kernels)
        question = f"{op} for {dtype} on {platform.name}" + (f" with {method} weights" if method else "")
        if forced:
            raise BadOverride(f"{origin}={forced} cannot serve {question}:\n{reasons}")
        raise NoKernel(f"no kernel can serve {question}:\n{reasons}")


def misfit(spec: KernelSpec, platform: Platform, dtype: str, method: str, traits: Traits, goal: Objective) -> str:
    """Why a kernel cannot serve this call site; empty when it can."""
    if platform.kind not in spec.devices:
        return f"runs on {', '.join(sorted(spec.devices))}"
    if dtype not in spec.dtypes:
        return f"no {dtype}"
    if method and spec.weight_methods and method not in spec.weight_methods:
        return f"does not read {method} weights"
    if platform.kind == "cuda" and not spec.min_capability <= platform.capability <= spec.max_capability:
        low, high = spec.min_capability, spec.max_capability
        return f"needs compute capability {low[0]}.{low[1]} to {high[0]}.{high[1]}"
    if platform.kind == "cpu" and (missing := spec.cpu_features - platform.features):
        return f"needs {', '.join(sorted(missing))}"
    if goal is Objective.DETERMINISM and BATCH_INVARIANT not in spec.flags:
        return "a row's result may depend on its batch"
    if spec.accepts is not None and (reason := spec.accepts(traits)):
        return reason
    for module in spec.requires:
        if not _findable(module):
            return f"module {module} is not installed"
    return ""


def rank(fitting: list[KernelSpec], goal: Objective, measured: Mapping[str, float]) -> list[KernelSpec]:
    """Best first. Measured kernels trade places among themselves by their time; the rest keep their band's place."""
    order = sorted(fitting, key=lambda spec: (_band(spec, goal), goal not in spec.favours, spec.name))
    if goal not in (Objective.LATENCY, Objective.THROUGHPUT):
        return order
    timed = iter(sorted((s for s in order if s.name in measured), key=lambda s: measured[s.name]))
    return [next(timed) if spec.name in measured else spec for spec in order]


def site_key(op: str, platform: Platform, dtype: str, method: str, traits: Traits) -> str:
    """The name under which timings of one call site are kept."""
    shape = ",".join(f"{name}={traits[name]}" for name in sorted(traits))
    return "|".join((op, platform.name, dtype, method or "-", shape or "-"))


def _band(spec: KernelSpec, goal: Objective) -> int:
    if goal is Objective.DEBUG:
        return spec.priority
    if goal is Objective.PORTABILITY:
        if spec.priority is Priority.PORTABLE:
            return -1
        return spec.priority
    return -spec.priority


def _why(
    spec: KernelSpec,
    goal: Objective,
    forced: str,
    origin: str,
    measured: Mapping[str, float],
    *,
    alone: bool,
    first: bool,
) -> str:
    if forced:
        return f"forced by {origin}"
    if alone:
        return "the only one that fits"
    if not first:
        return "the best that loads"
    if spec.name in measured and goal in (Objective.LATENCY, Objective.THROUGHPUT):
        return f"measured at {measured[spec.name] * 1e6:.1f} µs"
    return f"{spec.priority.name.lower()} is best for {goal.value}"


def _behind(other: KernelSpec, winner: KernelSpec, goal: Objective, measured: Mapping[str, float]) -> str:
    if other.name in measured and winner.name in measured and goal in (Objective.LATENCY, Objective.THROUGHPUT):
        return f"measured at {measured[other.name] * 1e6:.1f} µs, {winner.name} at {measured[winner.name] * 1e6:.1f}"
    return f"{other.priority.name.lower()} is behind {winner.name} for {goal.value}"


def _extras(spec: KernelSpec) -> tuple[tuple[str, str], ...]:
    """What else of a spec is to be imported, by its name in `Selection`."""
    return ("prepare", spec.prepare), ("plans", spec.plans)


def _load(target: str) -> Callable[..., Any]:
    module, _, name = target.partition(":")
    found = getattr(import_module(module), name)
    if not callable(found):
        raise TypeError(f"{target} is not callable")
    return found


@cache
def _findable(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


@cache
def default_registry() -> Registry:
    """The kernels of this installation: our own, then those of plugins."""
    registry = Registry(builtin_specs())
    for point in entry_points(group=PLUGIN_GROUP):
        try:
            for spec in point.load()():
                registry.register(spec)
        except Exception as error:  # someone else's package must not stop the engine; it is logged and named
            log.warning("kernel plugin %s ignored: %s: %s", point.name, type(error).__name__, error)
    return registry


def select(
    op: str,
    *,
    dtype: object = "float32",
    device: object = "cpu",
    weight_method: str = "",
    traits: Traits | None = None,
    objective: Objective | str = Objective.LATENCY,
    override: str = "",
    config: Mapping[str, str] | None = None,
) -> Selection:
    """`Registry.select` on this installation's kernels."""
    return default_registry().select(
        op,
        dtype=dtype,
        device=device,
        weight_method=weight_method,
        traits=traits,
        objective=objective,
        override=override,
        config=config,
    )
