"""What a model is, read from config.json or from GGUF metadata. Knows nothing about tensors, devices or kernels.

Both spellings of transformers are read: v4 (`rope_theta`, `rope_scaling`, `torch_dtype`) and v5 (`rope_parameters`,
`dtype`). Fields that would change the computation and are not implemented are refused, never ignored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tsd.engine.model_errors import ConfigError, UnknownArchitecture
from tsd.engine.rope_config import RopeConfig, rope_from_gguf, rope_from_json

DTYPES = ("float32", "bfloat16", "float16")

_GGUF_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


@dataclass(frozen=True)
class ModelConfig:
    """A decoder-only transformer. Sizes are counts of elements; token ids are the model's own defaults."""

    architecture: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: RopeConfig
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    dtype: str = ""
    """What the file says its weights are: float32, bfloat16, float16, or "" where it does not say (GGUF)."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    source: str = ""
    """The file this was read from, for messages."""
    raw: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """The whole config.json or the scalar GGUF metadata, for architectures with fields of their own."""

    @property
    def q_size(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads together."""
        return self.num_kv_heads * self.head_dim


def load_model_config(path: str | Path) -> ModelConfig:
    """Reads `path`: a GGUF file, a folder with config.json, or a config.json. Raises ConfigError or WeightsError."""
    path = Path(path)
    if path.is_dir():
        return config_from_json(_read_json(_config_file(path)), str(_config_file(path)))
    if not path.exists():
        raise ConfigError(path, "no such file or folder")
    if path.suffix == ".json":
        return config_from_json(_read_json(path), str(path))
    from tsd.engine.weights.gguf_file import GGUFFile

    with GGUFFile(path) as file:
        return config_from_gguf(file.metadata, file.config_facts(), str(path))


def _config_file(folder: Path) -> Path:
    config = folder / "config.json"
    if not config.exists():
        raise ConfigError(folder, "the folder has no config.json")
    return config


def _read_json(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(path, f"not readable as JSON: {error}") from error
    if not isinstance(raw, dict):
        raise ConfigError(path, "must hold a JSON object")
    return raw


def known_architecture(name: str, where: str) -> str:
    """Returns `name` if a model is registered for it, else raises UnknownArchitecture naming the nearest."""
    from tsd.engine.models.registry import architectures  # the registry's models import this module

    known = architectures()
    if name not in known:
        raise UnknownArchitecture(where, name, known)
    return name


class Fields:
    """Typed reads from a mapping of fields; each error names the field and the file."""

    def __init__(self, raw: Mapping[str, Any], where: str) -> None:
        self.raw = raw
        self.where = where

    def error(self, what: str) -> ConfigError:
        return ConfigError(self.where, what)

    def integer(self, name: str, default: int | None = None, least: int = 1) -> int:
        value = self.raw.get(name)
        if value is None:
            if default is None:
                raise self.error(f"missing field {name!r}")
            value = default
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(f"field {name!r} must be an integer, not {value!r}")
        if value < least:
            raise self.error(f"field {name!r} must be at least {least}, not {value}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.raw.get(name)
        if value is None:
            if default is None:
                raise self.error(f"missing field {name!r}")
            value = default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.error(f"field {name!r} must be a positive number, not {value!r}")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.raw.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(f"field {name!r} must be true or false, not {value!r}")
        return value


def config_from_json(raw: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
    """A ModelConfig from the fields of a Hugging Face config.json. Raises ConfigError."""
    fields = Fields(raw, where)
    names = raw.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise fields.error("field 'architectures' must list one architecture name")
    architecture = known_architecture(names[0], where)
    if raw.get("quantization_config"):
        raise fields.error("field 'quantization_config': checkpoints quantised by other tools are not supported")
    if raw.get("hidden_act", "silu") != "silu":
        raise fields.error(f"field 'hidden_act' is {raw['hidden_act']!r}; only 'silu' is supported")
    if raw.get("use_sliding_window") or (raw.get("sliding_window") and "use_sliding_window" not in raw):
        raise fields.error("field 'sliding_window': sliding window attention is not supported for this architecture")
    kinds = raw.get("layer_types") or []
    if any(kind != "full_attention" for kind in kinds):
        raise fields.error(f"field 'layer_types' has {sorted(set(kinds))}; only 'full_attention' is supported")
    heads = fields.integer("num_attention_heads")
    hidden = fields.integer("hidden_size")
    if raw.get("head_dim") is None and hidden % heads:
        raise fields.error(
            f"hidden_size {hidden} is not a multiple of num_attention_heads {heads} and head_dim is absent"
        )
    head_dim = fields.integer("head_dim", hidden // heads)
    max_positions = fields.integer("max_position_embeddings")
    config = ModelConfig(
        architecture=architecture,
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=fields.integer("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=fields.integer("num_key_value_heads", heads),
        head_dim=head_dim,
        vocab_size=fields.integer("vocab_size"),
        max_position_embeddings=max_positions,
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope=rope_from_json(raw, max_positions, where),
        tie_word_embeddings=fields.flag("tie_word_embeddings"),
        attention_bias=fields.flag("attention_bias"),
        mlp_bias=fields.flag("mlp_bias"),
        dtype=_dtype(raw, fields),
        bos_token_id=next(iter(_token_ids("bos_token_id", raw.get("bos_token_id"), fields)), None),
        eos_token_ids=_token_ids("eos_token_id", raw.get("eos_token_id"), fields),
        source=where,
        raw=raw,
    )
    _check(config, fields)
    return config


def config_from_gguf(metadata: Mapping[str, Any], facts: Mapping[str, Any], where: str) -> ModelConfig:
    """A ModelConfig from GGUF metadata; `facts` are what only the tensors tell (GGUFFile.config_facts)."""
    name = metadata.get("general.architecture")
    if not isinstance(name, str):
        raise ConfigError(where, "the metadata has no general.architecture")
    if name not in _GGUF_ARCHITECTURES:
        raise UnknownArchitecture(where, name, _GGUF_ARCHITECTURES)
    architecture = known_architecture(_GGUF_ARCHITECTURES[name], where)
    prefix = name + "."
    fields = Fields({k.removeprefix(prefix): v for k, v in metadata.items() if k.startswith(prefix)}, where)
    heads = fields.integer("attention.head_count")
    hidden = fields.integer("embedding_length")
    head_dim = fields.integer("attention.key_length", hidden // heads)
    if fields.integer("attention.value_length", head_dim) != head_dim:
        raise fields.error("key and value heads of different sizes are not supported")
    if fields.integer("rope.dimension_count", head_dim) != head_dim:
        raise fields.error("rotary embedding over a part of each head is not supported")
    context = fields.integer("context_length")
    eos = metadata.get("tokenizer.ggml.eos_token_id")
    eot = metadata.get("tokenizer.ggml.eot_token_id")
    config = ModelConfig(
        architecture=architecture,
        hidden_size=hidden,
        intermediate_size=fields.integer("feed_forward_length"),
        num_layers=fields.integer("block_count"),
        num_heads=heads,
        num_kv_heads=fields.integer("attention.head_count_kv", heads),
        head_dim=head_dim,
        vocab_size=fields.integer("vocab_size", facts.get("vocab_size")),
        max_position_embeddings=context,
        rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        rope=rope_from_gguf(fields.raw, facts.get("rope_factors"), context, where),
        tie_word_embeddings=bool(facts.get("tied", False)),
        attention_bias=bool(facts.get("attention_bias", False)),
        mlp_bias=bool(facts.get("mlp_bias", False)),
        bos_token_id=next(iter(_token_ids("bos_token_id", metadata.get("tokenizer.ggml.bos_token_id"), fields)), None),
        eos_token_ids=_token_ids("eos_token_id", [t for t in (eos, eot) if t is not None], fields),
        source=where,
        raw=metadata,
    )
    _check(config, fields)
    return config


def _check(config: ModelConfig, fields: Fields) -> None:
    """Refuses sizes that do not fit together."""
    if config.num_heads % config.num_kv_heads:
        raise fields.error(
            f"{config.num_heads} attention heads cannot be shared evenly by {config.num_kv_heads} key/value heads"
        )
    if config.head_dim % 2:
        raise fields.error(f"head_dim {config.head_dim} is odd; rotary embedding needs an even one")
    for name, token in [("bos_token_id", config.bos_token_id), *(("eos_token_id", t) for t in config.eos_token_ids)]:
        if token is not None and not 0 <= token < config.vocab_size:
            raise fields.error(f"{name} {token} lies outside the vocabulary of {config.vocab_size}")


def _dtype(raw: Mapping[str, Any], fields: Fields) -> str:
    value = raw.get("dtype", raw.get("torch_dtype"))
    if value is None:
        return ""
    if value not in DTYPES:
        raise fields.error(f"field 'dtype' is {value!r}; supported are {', '.join(DTYPES)}")
    return str(value)


def _token_ids(name: str, value: Any, fields: Fields) -> tuple[int, ...]:
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if any(isinstance(i, bool) or not isinstance(i, int) for i in ids):
        raise fields.error(f"{name} must be an integer or a list of them, not {value!r}")
    return tuple(dict.fromkeys(ids))
