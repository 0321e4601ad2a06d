"""Architectures by name: the built-in ones load, a plug-in is found by entry point and cannot replace them."""

from __future__ import annotations

import sys
import types
from importlib.metadata import EntryPoint

import pytest
from support.paged import PagedRunner
from support.tiny_models import SIZES

from tsd.engine.model_config import config_from_json
from tsd.engine.model_errors import ConfigError, UnknownArchitecture
from tsd.engine.models import build_model, registry
from tsd.engine.models.qwen3 import Qwen3
from tsd.engine.weights import open_weights


def plug(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    point = EntryPoint(name, value, registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group == "tsd.models" else [])


def test_every_built_in_name_loads() -> None:
    for name in registry.architectures():
        assert registry.model_class(name).NAMES["qkv"]


def test_a_plug_in_serves_its_own_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("plugged_models")
    module.Plugged = type("Plugged", (Qwen3,), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "plugged_models", module)
    plug(monkeypatch, "PluggedForCausalLM", "plugged_models:Plugged")
    config = config_from_json({**SIZES, "architectures": ["PluggedForCausalLM"]})
    model = build_model(config, weights=open_weights("", "dummy", config=config))
    assert type(model).__name__ == "Plugged"
    runner = PagedRunner(model)
    assert runner.prefill([runner.add([1, 2, 3])]).shape == (1, SIZES["vocab_size"])


def test_a_plug_in_cannot_take_over_a_built_in_name(monkeypatch: pytest.MonkeyPatch) -> None:
    plug(monkeypatch, "LlamaForCausalLM", "plugged_models:Plugged")
    assert registry.model_class("LlamaForCausalLM").__name__ == "Llama"


@pytest.mark.parametrize("value", ["no_such_module_here:Model", "json:Model"])
def test_a_broken_plug_in_is_named(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plug(monkeypatch, "BrokenForCausalLM", value)
    with pytest.raises(ConfigError, match=f"BrokenForCausalLM: cannot load {value}"):
        registry.model_class("BrokenForCausalLM")


def test_an_unknown_name() -> None:
    with pytest.raises(UnknownArchitecture, match="did you mean Qwen2ForCausalLM"):
        registry.model_class("Qwen2ForCausalLanguage")
