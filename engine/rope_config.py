"""Which rotary embedding a model asks for, read from either spelling of its file. The arithmetic is in `rope.py`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tsd.engine.model_errors import ConfigError

KINDS = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding over the whole head. Fields a kind does not use keep their defaults."""

    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    """How many times longer than the original context (all kinds but default)."""
    original_context: int = 0
    """Positions the model was first trained on (llama3, yarn)."""
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    """Multiplies cos and sin (yarn); None derives it from `factor`."""
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    truncate: bool = True
    freq_factors: tuple[float, ...] = ()
    """GGUF's per-frequency divisors [head_dim / 2], which carry llama3 scaling already worked out."""


def rope_from_json(raw: Mapping[str, Any], max_positions: int, where: str) -> RopeConfig:
    """From `rope_parameters` (transformers v5) or `rope_theta` and `rope_scaling` (v4). Raises ConfigError."""
    parameters = raw.get("rope_parameters")
    scaling = parameters if parameters is not None else raw.get("rope_scaling")
    if scaling is None:
        scaling = {}
    if not isinstance(scaling, Mapping):
        raise ConfigError(where, f"rope parameters must be an object or null, not {scaling!r}")
    theta = _number(scaling, "rope_theta", where, _number(raw, "rope_theta", where, 10000.0))
    if _number(scaling, "partial_rotary_factor", where, _number(raw, "partial_rotary_factor", where, 1.0)) != 1.0:
        raise ConfigError(where, "rotary embedding over a part of each head is not supported")
    kind = scaling.get("rope_type", scaling.get("type", "default")) or "default"
    if kind == "default":
        return RopeConfig(theta=theta)
    if kind not in KINDS:
        raise ConfigError(where, f"rope type {kind!r} is not supported (supported: {', '.join(KINDS)})")
    factor = _number(scaling, "factor", where)
    if factor < 1:
        raise ConfigError(where, f"rope factor must be at least 1, not {factor}")
    if kind == "linear":
        return RopeConfig(theta=theta, kind=kind, factor=factor)
    original = scaling.get("original_max_position_embeddings", raw.get("original_max_position_embeddings"))
    if original is None and kind == "yarn":
        original = max_positions
    if isinstance(original, bool) or not isinstance(original, int) or original < 1:
        raise ConfigError(where, "rope needs a positive integer original_max_position_embeddings")
    if kind == "llama3":
        low, high = _number(scaling, "low_freq_factor", where), _number(scaling, "high_freq_factor", where)
        if high <= low:
            raise ConfigError(where, f"rope high_freq_factor {high} must be above low_freq_factor {low}")
        return RopeConfig(theta, kind, factor, original, low_freq_factor=low, high_freq_factor=high)
    return RopeConfig(
        theta,
        kind,
        factor,
        original,
        beta_fast=_number(scaling, "beta_fast", where, 32.0),
        beta_slow=_number(scaling, "beta_slow", where, 1.0),
        attention_factor=_number(scaling, "attention_factor", where) if scaling.get("attention_factor") else None,
        mscale=_number(scaling, "mscale", where, 0.0),
        mscale_all_dim=_number(scaling, "mscale_all_dim", where, 0.0),
        truncate=bool(scaling.get("truncate", True)),
    )


def rope_from_gguf(
    fields: Mapping[str, Any], freq_factors: tuple[float, ...] | None, context: int, where: str
) -> RopeConfig:
    """From the metadata of one architecture (its prefix taken off) and the tensor rope_freqs, if there is one."""
    theta = _number(fields, "rope.freq_base", where, 10000.0)
    kind = fields.get("rope.scaling.type", "none")
    factor = _number(fields, "rope.scaling.factor", where, _number(fields, "rope.scale_linear", where, 1.0))
    if kind == "none" and "rope.scaling.type" not in fields and factor != 1.0:
        kind = "linear"
    if freq_factors:
        if kind != "none":
            raise ConfigError(where, f"rope_freqs together with rope scaling type {kind!r} is not supported")
        return RopeConfig(theta=theta, freq_factors=tuple(freq_factors))
    if kind == "none":
        return RopeConfig(theta=theta)
    if kind == "linear":
        return RopeConfig(theta=theta, kind="linear", factor=factor)
    if kind == "yarn":
        original = int(_number(fields, "rope.scaling.original_context_length", where, context))
        return RopeConfig(theta, "yarn", max(factor, 1.0), max(original, 1))
    raise ConfigError(where, f"rope scaling type {kind!r} is not supported")


def _number(raw: Mapping[str, Any], name: str, where: str, default: float | None = None) -> float:
    value = raw.get(name)
    if value is None:
        if default is None:
            raise ConfigError(where, f"rope parameters lack {name!r}")
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ConfigError(where, f"rope parameter {name!r} must be a positive number, not {value!r}")
    return float(value)
