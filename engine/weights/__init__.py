"""Where weights come from. Importing this costs no torch: the parts load when they are used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tsd.engine.model_errors import ModelError, WeightsError

if TYPE_CHECKING:
    from tsd.engine.model_config import ModelConfig
    from tsd.engine.weights.source import WeightSource

LOAD_FORMATS = ("auto", "safetensors", "gguf", "dummy")
_REFUSED = {".bin", ".pt", ".pth", ".ckpt", ".pkl"}

__all__ = ["LOAD_FORMATS", "ModelError", "WeightsError", "detect_format", "open_weights"]


def detect_format(path: str | Path) -> str:
    """safetensors or gguf, by what lies at `path`. Raises WeightsError for anything else; pickle is refused."""
    path = Path(path)
    if path.is_file():
        if path.suffix == ".gguf":
            return "gguf"
        if path.suffix in _REFUSED:
            raise WeightsError(path, "pickle checkpoints can run code and are not read; convert it to safetensors")
        with path.open("rb") as file:
            if file.read(4) == b"GGUF":
                return "gguf"
        raise WeightsError(path, "is neither a GGUF file nor a model folder")
    if not path.is_dir():
        raise WeightsError(path, "no such file or folder")
    if any(path.glob("*.safetensors")) or (path / "model.safetensors.index.json").exists():
        return "safetensors"
    if any(file.suffix in _REFUSED for file in path.iterdir()):
        raise WeightsError(path, "pickle checkpoints can run code and are not read; convert them to safetensors")
    raise WeightsError(path, "the folder has no .safetensors file (--load-format dummy makes random weights)")


def open_weights(path: str | Path, load_format: str = "auto", *, config: ModelConfig, seed: int = 0) -> WeightSource:
    """Opens the weights at `path` in one of LOAD_FORMATS. `seed` is that of dummy weights. Raises WeightsError."""
    if load_format not in LOAD_FORMATS:
        raise WeightsError(path, f"unknown load format {load_format!r} (known: {', '.join(LOAD_FORMATS)})")
    if load_format == "auto":
        load_format = detect_format(path)
    if load_format == "dummy":
        from tsd.engine.weights.dummy_source import DummySource

        return DummySource(seed)
    if load_format == "gguf":
        from tsd.engine.weights.gguf_source import GGUFSource

        return GGUFSource(path, config)
    from tsd.engine.weights.safetensors_source import SafetensorsSource

    return SafetensorsSource(path)
