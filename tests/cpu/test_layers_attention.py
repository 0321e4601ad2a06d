"""Attention uses a decode kernel that takes the projection itself only where it is the chosen kernel's sibling."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.paged import PagedRunner
from support.tiny_models import SIZES

from tsd.engine.layers import site
from tsd.engine.model_config import config_from_json
from tsd.engine.models import Decoder, build_model
from tsd.engine.weights import open_weights
from tsd.kernels.attention import reference
from tsd.kernels.catalog import builtin_specs
from tsd.kernels.registry import Registry
from tsd.kernels.spec import BATCH_INVARIANT, KernelSpec, Priority

PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8]]
PAGED = KernelSpec("attention.paged", "pair", "pair", "tsd.kernels.attention.reference:paged", Priority.PLUGIN)
calls: list[int] = []


def fused(qkv: torch.Tensor, *args: object, **options: object) -> torch.Tensor:
    calls.append(qkv.shape[0])
    return reference.rope_decode(qkv, *args, **options)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """The usual kernels, and a decode kernel beside a paged kernel, both named `pair`."""
    registry = Registry(builtin_specs())
    registry.register(PAGED)
    registry.register(KernelSpec("attention.rope_decode", "pair", "pair", f"{__name__}:fused", Priority.PLUGIN))
    monkeypatch.setattr(site, "select", registry.select)
    calls.clear()
    return registry


def model(**options: object) -> Decoder:
    config = config_from_json({**SIZES, "architectures": ["Qwen3ForCausalLM"]})
    weights = open_weights("", "dummy", config=config)
    return build_model(config, dtype="float32", weights=weights, **options)  # type: ignore[arg-type]


def greedy(decoder: Decoder) -> list[list[int]]:
    runner = PagedRunner(decoder)
    return runner.greedy([runner.add(prompt) for prompt in PROMPTS], 10)


def test_rows_of_one_token_take_the_short_way_and_compute_the_same() -> None:
    short = model()
    assert ("attention.rope_decode", "pair") in {(u.op, u.selection.spec.name) for u in short.describe_kernels()}
    tokens = greedy(short)
    assert calls == [2] * (9 * SIZES["num_hidden_layers"])
    calls.clear()
    assert greedy(model(overrides={"attention.paged": "reference"})) == tokens
    assert not calls


def test_it_is_left_out_where_it_breaks_the_objective(kernels: Registry) -> None:
    kernels.register(replace(PAGED, flags=frozenset({BATCH_INVARIANT})))
    steady = model(objective="determinism").describe_kernels()
    assert "pair" in {use.selection.spec.name for use in steady if use.op == "attention.paged"}
    assert "attention.rope_decode" not in {use.op for use in steady}
