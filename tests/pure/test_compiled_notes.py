"""Notes of what is compiled: believed only while nothing that decides on kernels has changed."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from tsd.engine import compiled, precompile
from tsd.engine.config import EngineConfig


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EngineConfig:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    for folder in ("A", "B"):
        (tmp_path / "cache" / folder).mkdir(parents=True)
        (tmp_path / "cache" / folder / "kernel.cubin").touch()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    return EngineConfig(model=str(tmp_path / "model"), device="cuda:0")


def test_a_note_is_believed(config: EngineConfig, tmp_path: Path) -> None:
    assert not compiled.is_complete(config)
    compiled.note(config, ["A", "B"])
    assert compiled.is_complete(config)
    assert compiled.is_complete(msgspec.structs.replace(config, seed=3, log_level="debug", host_cache_gb=4.0))
    assert sorted(path.suffix for path in (tmp_path / "cache").iterdir()) == ["", "", ".json"]


@pytest.mark.parametrize("change", ["setting", "model", "folder", "empty", "switch", "cache", "note"])
def test_a_note_is_not_believed_after(
    change: str, config: EngineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled.note(config, ["A", "B"])
    match change:
        case "setting":
            config = msgspec.structs.replace(config, max_num_seqs=7)
        case "model":
            (tmp_path / "model" / "config.json").write_text("{ }")
        case "folder":
            (tmp_path / "cache" / "B" / "kernel.cubin").unlink()
            (tmp_path / "cache" / "B").rmdir()
        case "empty":
            (tmp_path / "cache" / "B" / "kernel.cubin").unlink()
        case "switch":
            monkeypatch.setenv("TSD_KERNEL_GEMM", "torch")
        case "cache":
            monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "other"))
        case "note":
            for note in (tmp_path / "cache").glob("tsd-*.json"):
                note.write_text('["A", ')
    assert not compiled.is_complete(config)


def test_no_process_is_started_where_all_is_there(config: EngineConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def popen(*_: object, **__: object) -> None:
        raise AssertionError("started")

    monkeypatch.setattr(precompile.subprocess, "Popen", popen)
    with pytest.raises(AssertionError, match="started"):
        precompile.Precompile(config)
    compiled.note(config, ["A", "B"])
    assert precompile.Precompile(config).wait(lambda *_: None)
    assert precompile.start(msgspec.structs.replace(config, device="cpu")) is None


def test_without_a_cache_nothing_is_noted(
    config: EngineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "none"))
    compiled.note(config, [])
    assert not os.path.exists(tmp_path / "none")
