"""Architectures by name. A model file is imported when its architecture is asked for, never before.

Other packages add architectures through the entry point group `tsd.models`: the name is the architecture as
config.json spells it, the value "module:Class" with the interface of `decoder.Decoder`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from tsd.engine.model_errors import ConfigError, UnknownArchitecture

if TYPE_CHECKING:
    from tsd.engine.models.decoder import Decoder

ENTRY_POINT_GROUP = "tsd.models"

_BUILT_IN = {
    "LlamaForCausalLM": "tsd.engine.models.llama:Llama",
    "Qwen2ForCausalLM": "tsd.engine.models.qwen2:Qwen2",
    "Qwen3ForCausalLM": "tsd.engine.models.qwen3:Qwen3",
}


def architectures() -> Mapping[str, str]:
    """Architecture name to "module:Class". Built-in names cannot be taken over by an entry point."""
    plugins = {point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)}
    return {**plugins, **_BUILT_IN}


def model_class(architecture: str) -> type[Decoder]:
    """The class that implements `architecture`. Raises UnknownArchitecture, or ConfigError if its module is broken."""
    known = architectures()
    if architecture not in known:
        raise UnknownArchitecture("", architecture, known)
    module, _, name = known[architecture].partition(":")
    try:
        found: type[Decoder] = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError("", f"architecture {architecture}: cannot load {known[architecture]}: {error}") from error
    return found
