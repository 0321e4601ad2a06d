"""config.json and GGUF metadata become one ModelConfig, and what cannot be served is refused with the field's name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tsd.engine.model_config import ModelConfig, config_from_gguf, config_from_json, load_model_config
from tsd.engine.model_errors import ConfigError, UnknownArchitecture
from tsd.engine.rope_config import RopeConfig

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "torch_dtype": "bfloat16",
    "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
}
GGUF: dict[str, Any] = {
    "general.architecture": "qwen3",
    "qwen3.block_count": 28,
    "qwen3.context_length": 40960,
    "qwen3.embedding_length": 1024,
    "qwen3.feed_forward_length": 3072,
    "qwen3.attention.head_count": 16,
    "qwen3.attention.head_count_kv": 8,
    "qwen3.attention.key_length": 128,
    "qwen3.attention.value_length": 128,
    "qwen3.attention.layer_norm_rms_epsilon": 1e-6,
    "qwen3.rope.freq_base": 1e6,
    "tokenizer.ggml.eos_token_id": 151645,
    "tokenizer.ggml.bos_token_id": 151643,
}


def changed(**fields: Any) -> dict[str, Any]:
    raw = {**LLAMA, **fields}
    return {name: value for name, value in raw.items() if value != "absent"}


def test_reads_a_llama_3_1_config() -> None:
    config = config_from_json(LLAMA)
    assert (config.head_dim, config.q_size, config.kv_size) == (128, 4096, 1024)
    assert config.rope == RopeConfig(500000.0, "llama3", 8.0, 8192, low_freq_factor=1.0, high_freq_factor=4.0)
    assert config.eos_token_ids == (128001, 128008, 128009)
    assert config.dtype == "bfloat16"
    assert not config.tie_word_embeddings


def test_both_spellings_of_transformers_are_one_config() -> None:
    new = changed(rope_theta="absent", rope_scaling="absent", torch_dtype="absent", dtype="bfloat16")
    new["rope_parameters"] = {**LLAMA["rope_scaling"], "rope_theta": 500000.0}
    assert config_from_json(new) == config_from_json(LLAMA)


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        (None, RopeConfig(500000.0)),
        ({"rope_type": "default"}, RopeConfig(500000.0)),
        ({"type": "linear", "factor": 4}, RopeConfig(500000.0, "linear", 4.0)),
        ({"type": "yarn", "factor": 40, "mscale": 0.7}, RopeConfig(500000.0, "yarn", 40.0, 131072, mscale=0.7)),
    ],
)
def test_rope_kinds(scaling: Any, expected: RopeConfig) -> None:
    assert config_from_json(changed(rope_scaling=scaling)).rope == expected


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"architectures": "absent"}, "architectures"),
        ({"architectures": []}, "architectures"),
        ({"hidden_size": "absent"}, "missing field 'hidden_size'"),
        ({"num_hidden_layers": 0}, "'num_hidden_layers' must be at least 1"),
        ({"vocab_size": "many"}, "'vocab_size' must be an integer"),
        ({"vocab_size": True}, "'vocab_size' must be an integer"),
        ({"rms_norm_eps": -1}, "'rms_norm_eps' must be a positive number"),
        ({"num_key_value_heads": 5}, "cannot be shared evenly"),
        ({"num_attention_heads": 24, "num_key_value_heads": 8}, "not a multiple of num_attention_heads"),
        ({"head_dim": 7}, "odd"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"sliding_window": 4096}, "sliding_window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"torch_dtype": "int4"}, "int4"),
        ({"eos_token_id": "</s>"}, "eos_token_id"),
        ({"eos_token_id": 999999}, "outside the vocabulary"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "longrope"),
        ({"rope_scaling": {"rope_type": "linear"}}, "lack 'factor'"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0.5}}, "at least 1"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "original_max_position_embeddings"),
        ({"rope_scaling": {**LLAMA["rope_scaling"], "high_freq_factor": 1.0}}, "high_freq_factor"),
        ({"partial_rotary_factor": 0.5}, "part of each head"),
        ({"rope_theta": "big"}, "rope_theta"),
    ],
)
def test_refuses_naming_field_and_file(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_from_json(changed(**fields), "somewhere/config.json")
    assert words in str(caught.value)
    assert str(caught.value).startswith("somewhere/config.json: ")


@pytest.mark.parametrize(
    ("name", "nearest"), [("LlamaForCasualLM", "LlamaForCausalLM"), ("Qwen3MForCausalLM", "Qwen3ForCausalLM")]
)
def test_unknown_architecture_names_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(UnknownArchitecture, match=f"did you mean {nearest}"):
        config_from_json(changed(architectures=[name]))


def test_unknown_architecture_comes_before_its_missing_fields() -> None:
    with pytest.raises(UnknownArchitecture, match="T5ForConditionalGeneration"):
        config_from_json({"architectures": ["T5ForConditionalGeneration"]})


def test_reads_gguf_metadata() -> None:
    config = config_from_gguf(GGUF, {"tied": True, "vocab_size": 151936}, "a.gguf")
    expected = ModelConfig(
        architecture="Qwen3ForCausalLM",
        hidden_size=1024,
        intermediate_size=3072,
        num_layers=28,
        num_heads=16,
        num_kv_heads=8,
        head_dim=128,
        vocab_size=151936,
        max_position_embeddings=40960,
        rms_norm_eps=1e-6,
        rope=RopeConfig(1e6),
        tie_word_embeddings=True,
        bos_token_id=151643,
        eos_token_ids=(151645,),
        source="a.gguf",
    )
    assert config == expected


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"general.architecture": "gemma7"}, "gemma7"),
        ({"qwen3.block_count": None}, "block_count"),
        ({"qwen3.attention.value_length": 64}, "different sizes"),
        ({"qwen3.rope.dimension_count": 64}, "part of each head"),
        ({"qwen3.rope.scaling.type": "longrope"}, "longrope"),
    ],
)
def test_refuses_gguf_metadata(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config_from_gguf({**GGUF, **fields}, {"vocab_size": 151936}, "a.gguf")


def test_gguf_rope_scaling() -> None:
    facts = {"vocab_size": 151936}
    linear = {**GGUF, "qwen3.rope.scaling.type": "linear", "qwen3.rope.scaling.factor": 2.0}
    assert config_from_gguf(linear, facts, "a.gguf").rope == RopeConfig(1e6, "linear", 2.0)
    factors = config_from_gguf(GGUF, {**facts, "rope_factors": (1.0, 8.0)}, "a.gguf").rope
    assert factors == RopeConfig(1e6, freq_factors=(1.0, 8.0))


def test_load_refuses_what_is_not_a_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_model_config(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"no config\.json"):
        load_model_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="not readable as JSON"):
        load_model_config(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match="JSON object"):
        load_model_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert load_model_config(tmp_path).source == str(tmp_path / "config.json")


def test_reading_a_config_imports_no_torch(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    code = (
        "import sys; from tsd.engine.model_config import load_model_config; import tsd.engine.weights; "
        f"load_model_config({str(tmp_path)!r}); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
