"""Model architectures. Importing this costs no torch: `build_model` loads on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tsd.engine.models.build import LoadProgress, build_model, resolve_dtype
    from tsd.engine.models.decoder import Decoder, KVSpec

__all__ = ["Decoder", "KVSpec", "LoadProgress", "build_model", "resolve_dtype"]

_HOMES = {
    "Decoder": "decoder",
    "KVSpec": "decoder",
    "LoadProgress": "build",
    "build_model": "build",
    "resolve_dtype": "build",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"tsd.engine.models.{_HOMES[name]}"), name)
