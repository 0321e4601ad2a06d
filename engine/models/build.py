"""Builds a model: from a configuration and a place for weights to a callable forward pass."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import NamedTuple

import torch

from tsd.engine.layers import Layer, Site
from tsd.engine.layers.site import QUANTIZATIONS
from tsd.engine.model_config import DTYPES, ModelConfig
from tsd.engine.model_errors import ConfigError
from tsd.engine.models.decoder import Decoder
from tsd.engine.models.registry import model_class
from tsd.engine.weights.source import WeightSource

_GPU_READERS = 8


class LoadProgress(NamedTuple):
    """How far loading is; bytes are of device memory."""

    done_bytes: int
    total_bytes: int
    seconds: float


def resolve_dtype(config: ModelConfig, asked: str | torch.dtype, device: str | torch.device) -> torch.dtype:
    """The model's dtype. `auto` is the file's own; where it names none, float32 on a CPU and bfloat16 on a GPU."""
    if isinstance(asked, torch.dtype):
        asked = str(asked).removeprefix("torch.")
    if asked == "auto":
        asked = config.dtype or ("float32" if torch.device(device).type == "cpu" else "bfloat16")
    if asked not in DTYPES:
        raise ConfigError(config.source, f"dtype {asked!r} is not supported (auto, {', '.join(DTYPES)})")
    found = getattr(torch, asked)
    assert isinstance(found, torch.dtype)
    return found


def build_model(
    config: ModelConfig,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "cpu",
    weights: WeightSource,
    quantization: str = "auto",
    overrides: Mapping[str, str] | None = None,
    objective: str = "latency",
    kv_dtype: torch.dtype | None = None,
    max_positions: int = 0,
    progress: Callable[[LoadProgress], None] | None = None,
    load: bool = True,
) -> Decoder:
    """The model that `config` describes, with `weights` on `device`, ready for `forward`.

    With load=False only kernels, formats and sizes are settled (a dry run); nothing is read and `forward` must not be
    called. `progress` is called from this thread. Raises ConfigError, WeightsError, or the registry's KernelError.
    """
    if quantization not in QUANTIZATIONS:
        raise ConfigError(config.source, f"quantization {quantization!r} is unknown ({', '.join(QUANTIZATIONS)})")
    site = Site(
        resolve_dtype(config, dtype, device), torch.device(device), quantization, objective, overrides or {}, kv_dtype
    )
    model = model_class(config.architecture)(config, site, max_positions)
    weights.check(model.tensors(), model.ignores)
    model.plan(weights)
    if load:
        _load(model.layers(), weights, site.device, progress)
        model.bind()
    return model


def _load(
    layers: list[Layer],
    source: WeightSource,
    device: torch.device,
    progress: Callable[[LoadProgress], None] | None,
) -> None:
    """Reads all layers, several at once; the first error stops the rest and is raised."""
    started = time.monotonic()
    sizes = {layer: layer.weight_bytes for layer in layers}
    total, done = sum(sizes.values()), 0
    readers = min(_GPU_READERS if device.type == "cuda" else 2, os.cpu_count() or 1)
    with ThreadPoolExecutor(readers, thread_name_prefix="tsd-weights") as pool:
        pending = {pool.submit(_load_one, layer, source): layer for layer in layers}
        try:
            for future in as_completed(pending):
                future.result()
                done += sizes[pending[future]]
                if progress is not None:
                    progress(LoadProgress(done, total, time.monotonic() - started))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _load_one(layer: Layer, source: WeightSource) -> None:
    with torch.no_grad():
        layer.load(source)
