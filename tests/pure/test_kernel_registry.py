"""Choosing kernels: filters, order, overrides, measured timings, and what happens when a kernel cannot load."""

from __future__ import annotations

import dataclasses
import json
import logging
import subprocess
import sys

import pytest

from tsd.kernels.explain import explain, explain_all
from tsd.kernels.platform import Platform
from tsd.kernels.registry import Registry, default_registry, site_key
from tsd.kernels.spec import (
    BATCH_INVARIANT,
    BadOverride,
    BadTimings,
    KernelSpec,
    NoKernel,
    Objective,
    Priority,
    UnknownOperation,
)

CPU = Platform("cpu", "test cpu", features=frozenset({"avx2"}))
HOPPER = Platform("cuda", "test gpu", capability=(9, 0))


def platform(device: str) -> Platform:
    return HOPPER if device.startswith("cuda") else CPU


def spec(name: str, priority: Priority, **changes: object) -> KernelSpec:
    base = KernelSpec(op="gemm.linear", name=name, solution=name, target="math:floor", priority=priority)
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


def registry(*specs: KernelSpec) -> Registry:
    return Registry(specs, platform)


REFERENCE = spec("reference", Priority.REFERENCE, solution="torch", flags=frozenset({BATCH_INVARIANT}))
PORTABLE = spec("portable", Priority.PORTABLE, flags=frozenset({BATCH_INVARIANT}))
FAST = spec("fast", Priority.PERFORMANT, target="math:ceil")


def reason(selection: object, name: str) -> str:
    return next(c.reason for c in selection.candidates if c.spec.name == name)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("objective", "winner"),
    [
        (Objective.LATENCY, "fast"),
        (Objective.THROUGHPUT, "fast"),
        (Objective.PORTABILITY, "portable"),
        (Objective.DETERMINISM, "portable"),
        (Objective.DEBUG, "reference"),
    ],
)
def test_objective_orders_the_bands(objective: Objective, winner: str) -> None:
    chosen = registry(REFERENCE, FAST, PORTABLE).select("gemm.linear", objective=objective)
    assert chosen.spec.name == winner
    assert [c.chosen for c in chosen.candidates].count(True) == 1
    assert all(c.reason for c in chosen.candidates)


@pytest.mark.parametrize(
    ("changes", "question", "words"),
    [
        ({"devices": frozenset({"cuda"})}, {}, "runs on cuda"),
        ({"dtypes": frozenset({"bfloat16"})}, {}, "no float32"),
        ({"weight_methods": frozenset({"q8_0"})}, {"weight_method": "q4_1"}, "does not read q4_1"),
        ({"min_capability": (10, 0)}, {"device": "cuda:0"}, "needs compute capability 10.0"),
        ({"max_capability": (8, 9)}, {"device": "cuda:0"}, "needs compute capability"),
        ({"cpu_features": frozenset({"avx2", "amx_tile"})}, {}, "needs amx_tile"),
        ({"requires": ("no_such_module_here",)}, {}, "not installed"),
        (
            {"accepts": lambda traits: "odd head" if traits.get("head_dim") == 7 else None},
            {"traits": {"head_dim": 7}},
            "odd head",
        ),
    ],
)
def test_misfits_lose_with_their_reason(changes: dict, question: dict, words: str) -> None:
    chosen = registry(REFERENCE, dataclasses.replace(FAST, **changes)).select("gemm.linear", **question)
    assert chosen.spec.name == "reference"
    assert words in reason(chosen, "fast")


def test_a_kernel_that_fails_to_load_loses_with_one_log_line(caplog: pytest.LogCaptureFixture) -> None:
    broken = spec("broken", Priority.PLUGIN, target="tsd_nowhere:fn")
    nameless = spec("nameless", Priority.SPECIALIZED, target="math:no_such_function")
    with caplog.at_level(logging.WARNING, "tsd.kernels"):
        chosen = registry(REFERENCE, broken, nameless).select("gemm.linear")
    assert chosen.spec.name == "reference"
    assert "tsd_nowhere" in reason(chosen, "broken")
    assert "no_such_function" in reason(chosen, "nameless")
    assert len(caplog.records) == 2


def test_nothing_fits() -> None:
    with pytest.raises(NoKernel, match="no float64"):
        registry(REFERENCE, FAST).select("gemm.linear", dtype="float64")
    with pytest.raises(UnknownOperation, match=r"moe\.apply"):
        registry(REFERENCE).select("moe.apply")


def test_override_order(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = registry(REFERENCE, PORTABLE, FAST)
    config = {"gemm.linear": "portable"}
    assert kernels.select("gemm.linear", config=config).spec.name == "portable"
    monkeypatch.setenv("TSD_KERNEL_GEMM_LINEAR", "torch")  # a solution's name does too
    assert kernels.select("gemm.linear", config=config).spec.name == "reference"
    assert kernels.select("gemm.linear", config=config, override="fast").spec.name == "fast"
    monkeypatch.delenv("TSD_KERNEL_GEMM_LINEAR")
    assert kernels.select("gemm.linear").spec.name == "fast"


def test_family_overrides_touch_only_members_that_know_them() -> None:
    kernels = registry(REFERENCE, FAST, spec("other", Priority.PORTABLE, op="gemm.grouped"))
    assert kernels.select("gemm.linear", config={"gemm": "torch"}).spec.name == "reference"
    assert kernels.select("gemm.grouped", config={"gemm": "torch"}).spec.name == "other"
    with pytest.raises(BadOverride, match="solutions: fast, other, torch"):
        kernels.select("gemm.linear", config={"gemm": "nobody"})


def test_a_bad_override_is_an_error_not_a_fallback() -> None:
    kernels = registry(REFERENCE, dataclasses.replace(FAST, dtypes=frozenset({"bfloat16"})))
    with pytest.raises(BadOverride, match="no float32"):
        kernels.select("gemm.linear", override="fast")
    with pytest.raises(BadOverride, match="forces nobody"):
        kernels.select("gemm.linear", override="nobody")


def test_measured_kernels_trade_places(tmp_path) -> None:
    kernels = registry(REFERENCE, PORTABLE, FAST)
    site = site_key("gemm.linear", CPU, "float32", "", {"n": 8})
    path = tmp_path / "timings.json"
    path.write_text(json.dumps({site: {"fast": 2e-5, "portable": 1e-5}}))
    kernels.load_timings(path)
    chosen = kernels.select("gemm.linear", traits={"n": 8})
    assert chosen.spec.name == "portable"
    assert "10.0 µs" in chosen.why
    assert "20.0 µs" in reason(chosen, "fast")
    assert kernels.select("gemm.linear", traits={"n": 9}).spec.name == "fast"
    path.write_text("[1, 2]")
    with pytest.raises(BadTimings):
        kernels.load_timings(path)


def test_selections_are_cached_until_something_is_registered() -> None:
    kernels = registry(REFERENCE)
    first = kernels.select("gemm.linear")
    assert kernels.select("gemm.linear") is first
    kernels.register(FAST)
    assert kernels.select("gemm.linear").spec.name == "fast"


def test_prepare_defaults_to_the_identity() -> None:
    weight = object()
    assert registry(REFERENCE).select("gemm.linear").prepare(weight) is weight
    prepared = registry(spec("p", Priority.PORTABLE, prepare="builtins:str")).select("gemm.linear")
    assert prepared.prepare(5) == "5"


def test_explain_names_every_candidate() -> None:
    kernels = registry(REFERENCE, FAST)
    text = explain(kernels.select("gemm.linear"))
    assert "→ fast" in text and "reference" in text
    assert "gemm.linear dense: fast" in explain_all(registry=kernels)
    assert "no float64" in explain_all(registry=kernels, dtype="float64")


def test_our_specs_are_complete_and_importing_them_imports_no_torch() -> None:
    operations = default_registry().operations()
    assert {"gemm.linear", "attention.rope_write", "attention.paged", "norm.rms"} <= set(operations)
    for op in operations:
        assert any(spec.priority is Priority.REFERENCE for spec in default_registry().kernels(op)), op
    code = "import sys; from tsd.kernels.registry import default_registry as d; d(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_unknown_device() -> None:
    with pytest.raises(ValueError, match="xpu"):
        default_registry().select("norm.rms", device="xpu")
