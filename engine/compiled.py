"""Notes beside Triton's cache of what is compiled for an engine, so that a start that finds all of it looks no further.

A note names the cache's folders; its own name sums up all that decides which kernels an engine launches. Whatever is
missed here costs time, not correctness: a kernel that is not there after all is compiled when it is loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from tsd.engine.config import EngineConfig

_GPUS = Path("/proc/driver/nvidia/gpus")
_INDIFFERENT = frozenset(
    {
        *("served_model_name", "engine", "seed", "log_level", "trace", "prefix_cache", "overlap", "mixed_batch"),
        *("host_cache_gb", "disk_cache_dir", "disk_cache_gb", "max_queued_requests", "max_queued_tokens"),
        *("kv_events_config", "prefill_hold", "cpu_threads", "trust_remote_code"),
    }
)
"""Settings that change no kernel; one that is not named here counts as one that may."""
_SWITCHES = ("TRITON_", "TSD_KERNEL_", "CUDA_VISIBLE_DEVICES")


def cache_dir() -> Path:
    """Triton's cache, as its settings name it; Triton itself is not loaded."""
    if folder := os.environ.get("TRITON_CACHE_DIR"):
        return Path(folder)
    return Path(os.environ.get("TRITON_HOME") or "~").expanduser() / ".triton" / "cache"


def note(config: EngineConfig, folders: list[str]) -> None:
    """Remembers that these folders of the cache hold every kernel of such an engine."""
    path = _path(config)
    if not path.parent.is_dir():
        return  # Triton keeps its cache elsewhere
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps(sorted(folders)))
    draft.replace(path)


def is_complete(config: EngineConfig) -> bool:
    """Whether every kernel of such an engine is noted and there."""
    try:
        folders = json.loads(_path(config).read_text())
        return all(os.listdir(cache_dir() / folder) for folder in folders)
    except (OSError, ValueError):
        return False


def _path(config: EngineConfig) -> Path:
    digest = hashlib.blake2b(digest_size=16)
    decisive = {name: value for name, value in msgspec.structs.asdict(config).items() if name not in _INDIFFERENT}
    digest.update(json.dumps(decisive, sort_keys=True).encode())
    model = Path(config.model)
    for file in (model / "config.json", model):
        if file.is_file():
            facts = file.stat()
            digest.update(f"{file} {facts.st_size} {facts.st_mtime_ns}".encode())
    home = Path(__file__).resolve().parent.parent
    for source in sorted(
        [*home.glob("kernels/**/*.py"), *home.glob("kernels/**/*.json"), *home.glob("engine/**/*.py")]
    ):
        digest.update(source.read_bytes())
    for gpu in sorted(_GPUS.glob("*/information")) if _GPUS.is_dir() else []:
        digest.update(gpu.read_bytes())
    switches = {name: value for name, value in os.environ.items() if name.startswith(_SWITCHES)}
    versions = [_version(package) for package in ("torch", "triton")]
    digest.update(json.dumps([sys.version, versions, switches], sort_keys=True).encode())
    return cache_dir() / f"tsd-{digest.hexdigest()}.json"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
