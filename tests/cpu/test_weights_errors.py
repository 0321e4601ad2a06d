"""A damaged or foreign checkpoint ends in one error that names the file and the tensor, never in a crash or a model."""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.tiny_gguf import write
from support.tiny_models import make

from tsd.engine.model_config import load_model_config
from tsd.engine.model_errors import ModelError, WeightsError
from tsd.engine.models import Decoder, build_model
from tsd.engine.weights import detect_format, open_weights

Q_PROJ = "model.layers.1.self_attn.q_proj.weight"
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    make("llama", folder)
    return folder


@pytest.fixture(scope="module")
def gguf_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("gguf")
    write(make("llama", folder / "hf"), folder / "model.gguf")
    return (folder / "model.gguf").read_bytes()


def load(path: Path, load_all: bool = True) -> Decoder:
    config = load_model_config(path)
    source = open_weights(path, config=config)
    return build_model(config, weights=source, load=load_all)


def rename(tensors: Tensors) -> None:
    tensors["model.layers.1.self_attn.query.weight"] = tensors.pop(Q_PROJ)


def drop(tensors: Tensors) -> None:
    del tensors[Q_PROJ]


def reshape(tensors: Tensors) -> None:
    tensors[Q_PROJ] = tensors[Q_PROJ].reshape(32, 128).clone()


def transpose_rectangle(tensors: Tensors) -> None:
    name = "model.layers.1.mlp.down_proj.weight"
    tensors[name] = tensors[name].T.contiguous()


def add(tensors: Tensors) -> None:
    tensors["model.layers.1.self_attn.gate.weight"] = torch.zeros(3)


def add_layer(tensors: Tensors) -> None:
    tensors["model.layers.3.mlp.down_proj.weight"] = torch.zeros(3)


def integers(tensors: Tensors) -> None:
    tensors[Q_PROJ] = tensors[Q_PROJ].to(torch.int32)


def eight_bits(tensors: Tensors) -> None:
    tensors[Q_PROJ] = tensors[Q_PROJ].to(torch.float8_e4m3fn)


@pytest.mark.parametrize(
    ("fault", "tensor", "words"),
    [
        (rename, Q_PROJ, r"missing.*self_attn\.query\.weight"),
        (drop, Q_PROJ, "missing"),
        (reshape, Q_PROJ, r"shape \[32, 128\], must be \[64, 64\]"),
        (transpose_rectangle, "model.layers.1.mlp.down_proj.weight", r"shape \[112, 64\], must be \[64, 112\]"),
        (add, "model.layers.1.self_attn.gate.weight", "not part of this model"),
        (add_layer, "model.layers.3.mlp.down_proj.weight", "not part of this model"),
        (integers, Q_PROJ, "type I32"),
        (eight_bits, Q_PROJ, "type F8_E4M3"),
    ],
)
def test_faulty_safetensors(
    fault: Callable[[Tensors], None], tensor: str, words: str, checkpoint: Path, tmp_path: Path
) -> None:
    shutil.copy(checkpoint / "config.json", tmp_path)
    tensors = load_file(checkpoint / "model.safetensors")
    fault(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=words) as caught:
        load(tmp_path, load_all=False)
    assert caught.value.tensor == tensor
    assert str(tmp_path) in caught.value.file


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1],
        lambda data: data[:5],
        lambda data: b"",
        lambda data: struct.pack("<Q", 1 << 60) + data[8:],
        lambda data: data[:8] + b"!" + data[9:],
        lambda data: data + b"\0",
    ],
    ids=["half", "last-byte", "five-bytes", "empty", "header-length", "header-text", "trailing"],
)
def test_truncated_or_corrupt_safetensors(damage: Callable[[bytes], bytes], checkpoint: Path, tmp_path: Path) -> None:
    shutil.copy(checkpoint / "config.json", tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(damage((checkpoint / "model.safetensors").read_bytes()))
    with pytest.raises(WeightsError, match="corrupt or truncated") as caught:
        load(tmp_path)
    assert caught.value.file == str(file)


def shard(checkpoint: Path, folder: Path) -> dict[str, str]:
    """Two shards and their index; returns the index's map."""
    shutil.copy(checkpoint / "config.json", folder)
    tensors = sorted(load_file(checkpoint / "model.safetensors").items())
    weight_map = {}
    for i, part in enumerate((tensors[:10], tensors[10:])):
        file = f"model-{i}.safetensors"
        save_file(dict(part), folder / file)
        weight_map.update({name: file for name, _ in part})
    write_index(folder, weight_map)
    return weight_map


def write_index(folder: Path, weight_map: object) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_sharded_checkpoint_faults(checkpoint: Path, tmp_path: Path) -> None:
    weight_map = shard(checkpoint, tmp_path)
    load(tmp_path)
    (tmp_path / "model-1.safetensors").rename(tmp_path / "aside")
    with pytest.raises(WeightsError, match=r"model-1\.safetensors: the file is missing"):
        load(tmp_path)
    (tmp_path / "aside").rename(tmp_path / "model-1.safetensors")
    write_index(tmp_path, {**weight_map, "model.extra": "model-0.safetensors"})
    with pytest.raises(WeightsError, match=r"model-0\.safetensors: tensor 'model\.extra': missing"):
        load(tmp_path)
    for bad in (None, {}, {Q_PROJ: "../../etc/passwd"}, {Q_PROJ: 3}):
        write_index(tmp_path, bad)
        with pytest.raises(WeightsError, match="index"):
            load(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("{")
    with pytest.raises(WeightsError, match="index is corrupt"):
        load(tmp_path)


def test_a_tensor_in_two_files(checkpoint: Path, tmp_path: Path) -> None:
    weight_map = shard(checkpoint, tmp_path)
    tensors = load_file(tmp_path / "model-1.safetensors")
    tensors[min(weight_map)] = torch.zeros(1)
    save_file(tensors, tmp_path / "model-1.safetensors")
    with pytest.raises(WeightsError, match=r"is also in .*model-0"):
        load(tmp_path)


def test_a_tied_model_may_carry_its_head_and_an_untied_one_must(checkpoint: Path, tmp_path: Path) -> None:
    tensors = load_file(checkpoint / "model.safetensors")
    config = json.loads((checkpoint / "config.json").read_text())
    for tied, head, fine in [(True, True, True), (True, False, True), (False, True, True), (False, False, False)]:
        config["tie_word_embeddings"] = tied
        (tmp_path / "config.json").write_text(json.dumps(config))
        kept = {name: tensor for name, tensor in tensors.items() if head or name != "lm_head.weight"}
        save_file(kept, tmp_path / "model.safetensors")
        if fine:
            assert load(tmp_path).num_parameters == sum(t.numel() for n, t in tensors.items() if n in kept) - (
                tensors["lm_head.weight"].numel() if tied and head else 0
            )
        else:
            with pytest.raises(WeightsError, match="missing") as caught:
                load(tmp_path)
            assert caught.value.tensor == "lm_head.weight"


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pkl"])
def test_pickle_is_refused(name: str, checkpoint: Path, tmp_path: Path) -> None:
    shutil.copy(checkpoint / "config.json", tmp_path)
    (tmp_path / name).write_bytes(b"\x80\x04.")
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(WeightsError, match="pickle"):
            detect_format(path)


def test_nothing_to_load(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="no such file"):
        detect_format(tmp_path / "nowhere")
    with pytest.raises(WeightsError, match=r"no \.safetensors"):
        detect_format(tmp_path)
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(WeightsError, match="neither"):
        detect_format(tmp_path / "notes.txt")
    with pytest.raises(WeightsError, match="unknown load format 'onnx'"):
        open_weights(tmp_path, "onnx", config=load_model_config(checkpoint))


@pytest.mark.parametrize(
    ("old", "new", "tensor", "words"),
    [
        (b"GGUF", b"GGML", "", "not a GGUF file"),
        (b"GGUF\x03", b"GGUF\x09", "", "version 9"),
        (b"blk.1.attn_q.weight", b"blk.1.attn_x.weight", Q_PROJ, "missing"),
        (b"blk.1.attn_q.weight", b"blk.1.attn_k.weight", "blk.1.attn_k.weight", "twice"),
        (b"blk.1.attn_q.weight", b"blk.7.attn_q.weight", Q_PROJ, "missing"),
    ],
)
def test_faulty_gguf(old: bytes, new: bytes, tensor: str, words: str, gguf_bytes: bytes, tmp_path: Path) -> None:
    assert gguf_bytes.count(old) == 1
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes.replace(old, new))
    with pytest.raises(WeightsError, match=words) as caught:
        load(path)
    assert (caught.value.file, caught.value.tensor) == (str(path), tensor)


def test_gguf_with_a_shape_type_or_name_that_is_wrong(gguf_bytes: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    name = b"blk.1.attn_q.weight"
    at = gguf_bytes.index(name) + len(name)
    assert struct.unpack_from("<IQQI", gguf_bytes, at) == (2, 64, 64, 0)

    def with_info(*info: int) -> None:
        path.write_bytes(gguf_bytes[:at] + struct.pack("<IQQI", *info) + gguf_bytes[at + 24 :])

    with_info(2, 32, 128, 0)
    with pytest.raises(WeightsError, match=r"shape \[128, 32\], must be \[64, 64\]"):
        load(path)
    with_info(2, 64, 64, 77)
    with pytest.raises(WeightsError, match="unknown type number 77"):
        load(path)
    with_info(2, 64, 1 << 50, 0)
    with pytest.raises(WeightsError, match="truncated"):
        load(path)
    with_info(2, 50, 64, 8)
    with pytest.raises(WeightsError, match="blocks of 32"):
        load(path)
    extra = gguf_bytes.replace(b"blk.2.ffn_norm.weight", b"blk.9.ffn_norm.weight")
    path.write_bytes(extra)
    with pytest.raises(WeightsError, match="missing") as caught:
        load(path)
    assert caught.value.tensor == "model.layers.2.post_attention_layernorm.weight"


def test_gguf_cut_anywhere(gguf_bytes: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    draw = random.Random(0)
    cuts = [0, 1, 4, 8, 23, len(gguf_bytes) - 32, *(draw.randrange(len(gguf_bytes) - 32) for _ in range(60))]
    for cut in cuts:
        path.write_bytes(gguf_bytes[:cut])
        with pytest.raises(WeightsError) as caught:
            load(path)
        assert caught.value.file == str(path)


def test_gguf_with_flipped_header_bytes_is_refused_or_read(gguf_bytes: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    draw = random.Random(1)
    header = gguf_bytes.index(b"blk.2.ffn_norm.weight") + 60
    refused = 0
    for _ in range(200):
        damaged = bytearray(gguf_bytes)
        for _ in range(draw.choice((1, 1, 3))):
            damaged[draw.randrange(header)] = draw.randrange(256)
        path.write_bytes(damaged)
        try:
            config = load_model_config(path)
            source = open_weights(path, config=config)
            try:
                build_model(config, weights=source, load=False, max_positions=64)
            finally:
                source.close()
        except ModelError:
            refused += 1
    assert refused > 50
