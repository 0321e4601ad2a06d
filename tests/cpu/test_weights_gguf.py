"""GGUF files: what the gguf library writes is read as the same model, packed and expanded, row order restored."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
import torch
from support.paged import PagedRunner
from support.tiny_gguf import write
from support.tiny_models import make, oracle_logits

from tsd.engine.model_config import load_model_config
from tsd.engine.models import build_model
from tsd.engine.weights import open_weights
from tsd.engine.weights.gguf_file import BLOCKS, GGUFFile

KINDS = gguf.GGMLQuantizationType
PROMPT = [5, 17, 150, 3, 3, 88, 41]


def logits(path: Path) -> torch.Tensor:
    config = load_model_config(path)
    source = open_weights(path, config=config)
    model = build_model(config, dtype="float32", weights=source, quantization="none")
    source.close()
    runner = PagedRunner(model)
    return runner.prefill([runner.add(PROMPT)])[0]


@pytest.mark.parametrize("kind", [KINDS.F32, KINDS.F16, KINDS.BF16, KINDS.Q4_0, KINDS.Q4_1, KINDS.Q8_0, KINDS.Q5_1])
@pytest.mark.parametrize("variant", ["llama", "llama-tied", "qwen2", "qwen3-tied"])
def test_a_gguf_computes_what_its_numbers_say(variant: str, kind: KINDS, tmp_path: Path) -> None:
    oracle = make(variant, tmp_path / "hf", intermediate_size=128)
    numbers = write(oracle, tmp_path / "model.gguf", kind)
    oracle.load_state_dict(numbers, strict=False)
    expected = oracle_logits(oracle, PROMPT)[-1]
    torch.testing.assert_close(logits(tmp_path / "model.gguf"), expected, rtol=2e-5, atol=2e-5)


def test_attention_biases_of_llama_are_put_in_order_too(tmp_path: Path) -> None:
    oracle = make("llama-biased", tmp_path / "hf")
    write(oracle, tmp_path / "model.gguf")
    expected = oracle_logits(oracle, PROMPT)[-1]
    torch.testing.assert_close(logits(tmp_path / "model.gguf"), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("kind", [KINDS.Q4_0, KINDS.Q4_1, KINDS.Q8_0])
def test_packed_weights_hold_the_same_numbers(kind: KINDS, tmp_path: Path) -> None:
    numbers = write(make("llama", tmp_path / "hf", intermediate_size=128), tmp_path / "model.gguf", kind)
    source = open_weights(tmp_path / "model.gguf", config=load_model_config(tmp_path / "model.gguf"))
    matrices = [name for name in numbers if source.packed_method(name)]
    assert len(matrices) == 3 * 7 + 2
    for name in matrices:
        packed = source.read_packed(name)
        assert packed.method == source.packed_method(name)
        assert torch.equal(packed.dequantize(), numbers[name]), name
    source.close()


def test_parser_agrees_with_the_gguf_library(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write(make("qwen3", tmp_path / "hf", intermediate_size=128), path, KINDS.Q8_0)
    theirs = gguf.GGUFReader(path)
    with GGUFFile(path) as ours:
        assert set(ours.tensors) == {tensor.name for tensor in theirs.tensors}
        for tensor in theirs.tensors:
            mine = ours.tensors[tensor.name]
            assert mine.shape == tuple(reversed(tensor.shape.tolist()))
            assert (mine.kind, mine.offset, mine.size) == (
                tensor.tensor_type.name,
                tensor.data_offset,
                tensor.n_bytes,
            )
        fields = {name: field for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
        assert set(ours.metadata) == set(fields)
        for name, value in ours.metadata.items():
            assert value == fields[name].contents(), name
    for number, (name, block, size) in BLOCKS.items():
        assert (KINDS(number).name, gguf.GGML_QUANT_SIZES[KINDS(number)]) == (name, (block, size))


def test_llama3_frequency_factors_come_from_their_tensor(tmp_path: Path) -> None:
    oracle = make("llama3-rope", tmp_path / "hf")
    path = tmp_path / "model.gguf"
    write(oracle, tmp_path / "plain.gguf")
    scaled = oracle.model.rotary_emb.inv_freq
    plain = 1.0 / 10000.0 ** (torch.arange(0, 16, 2) / 16)
    reader = gguf.GGUFReader(tmp_path / "plain.gguf")
    writer = gguf.GGUFWriter(path, "llama")
    for name, field in reader.fields.items():
        if not name.startswith(("GGUF.", "general.architecture")):
            sub = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), field.types[0], sub)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.add_tensor("rope_freqs.weight", (plain / scaled).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    expected = oracle_logits(oracle, PROMPT * 20)[-1]
    config = load_model_config(path)
    source = open_weights(path, config=config)
    runner = PagedRunner(build_model(config, weights=source))
    found = runner.prefill([runner.add(PROMPT * 20)])[0]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(logits(tmp_path / "plain.gguf"), logits(path), atol=1e-3)
