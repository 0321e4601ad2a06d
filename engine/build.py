"""From a configuration to the parts of an engine: weights, kernels, KV pages, warm-up, each a reported phase."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tsd.cache.disk import DiskStore
from tsd.engine.batch import KVCache
from tsd.engine.config import EngineConfig
from tsd.engine.engine import EngineParts
from tsd.engine.errors import ConfigurationError, StartError
from tsd.engine.executor.base import Executor
from tsd.engine.kernel_report import describe
from tsd.engine.memory import GIB, MemoryPlan, plan_memory
from tsd.engine.model_config import ModelConfig, load_model_config
from tsd.engine.model_errors import ModelError
from tsd.engine.models import Decoder, LoadProgress, build_model
from tsd.engine.precompile import Precompile
from tsd.engine.weights import open_weights
from tsd.engine.weights.source import WeightSource
from tsd.kernels.cpu.threads import set_threads
from tsd.kernels.registry import select
from tsd.kernels.spec import KernelError, Objective

Report = Callable[[str, str, float | None], None]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Phases:
    """Seconds spent in each phase of the start."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._name = ""
        self._began = time.monotonic()

    def begin(self, name: str) -> None:
        now = time.monotonic()
        if self._name:
            self.seconds[self._name] = round(self.seconds.get(self._name, 0.0) + now - self._began, 3)
        self._name, self._began = name, now


def build_engine(config: EngineConfig, report: Report, compiling: Precompile | None = None) -> EngineParts:
    """Loads everything, while `compiling` compiles kernels. Raises StartError with a sentence for the operator."""
    try:
        return _build(config, report, compiling)
    except (ModelError, KernelError) as error:
        raise StartError(str(error)) from error


def _build(config: EngineConfig, report: Report, compiling: Precompile | None) -> EngineParts:
    phases = Phases()
    phases.begin("weights")
    device = open_device(config)
    model_config = load_model_config(config.model)
    report("weights", f"{model_config.architecture} from {Path(config.model).name}", 0.0)
    model, memory = load_model(config, model_config, device, report)
    report("weights", f"{model.weight_bytes / GIB:.2f} GiB, {model.num_parameters / 1e6:,.0f}M parameters", 1.0)
    phases.begin("kv")
    if device.type == "cuda":
        # Planned again with what is really left: loading took what it took.
        memory = memory_for(config, model, device)
    cache = model.allocate_cache(memory.num_pages, memory.page_size)
    report("kv", f"{memory.kv_bytes / GIB:.2f} GiB, {memory.total_tokens:,} tokens", 1.0)
    phases.begin("kernels")
    version = weights_version(config, model)
    disk = open_disk(config, memory, cache, version)
    executor = make_executor(config, model, cache, memory, disk, report)
    compiled = compiling is not None and compiling.wait(report)
    phases.begin("warmup")
    captured = executor.warm_up(compiled)
    report("kernels", f"warmed up, {captured.get('captured', 0)} graphs", 1.0)
    phases.begin("")
    return EngineParts(
        config=config,
        memory=memory,
        executor=executor,
        architecture=model_config.architecture,
        model_name=config.served_model_name or Path(config.model).name,
        vocab_size=model_config.vocab_size,
        eos_token_ids=model_config.eos_token_ids,
        dtype=_name(model.dtype),
        phases={name: seconds for name, seconds in phases.seconds.items() if name},
        info={
            "kv_cache_dtype": _name(model.kv.dtype),
            "quantization": config.quantization,
            "grammar": "xgrammar",
            "weight_bytes": str(model.weight_bytes),
            "num_parameters": str(model.num_parameters),
            "deterministic": str(config.deterministic).lower(),
            "torch": str(torch.__version__),
            **device_info(device),
        },
        weights_version=version,
        disk=disk,
    )


def load_model(
    config: EngineConfig, model_config: ModelConfig, device: torch.device, report: Report, *, load: bool = True
) -> tuple[Decoder, MemoryPlan]:
    """The model and the memory planned for it; sizes are checked before any weight is read.

    With load=False only kernels, formats and sizes are settled.
    """
    weights = open_weights(config.model, config.load_format, config=model_config, seed=config.seed)
    last = -1

    def progress(done: LoadProgress) -> None:
        nonlocal last
        percent = 100 * done.done_bytes // max(1, done.total_bytes)
        if percent != last:
            last = percent
            report("weights", "", percent / 100)

    try:
        sketch = assemble(config, model_config, device, weights, load=False)
        memory = memory_for(config, sketch, device, still_to_load=sketch.weight_bytes)
        if not load:
            return sketch, memory
        return assemble(config, model_config, device, weights, load=True, progress=progress), memory
    finally:
        weights.close()


def assemble(
    config: EngineConfig,
    model_config: ModelConfig,
    device: torch.device,
    weights: WeightSource,
    *,
    load: bool,
    progress: Callable[[LoadProgress], None] | None = None,
) -> Decoder:
    """The model as `config` asks for it; with load=False only its kernels, formats and sizes."""
    dtype = config.dtype
    if dtype == "auto" and device.type == "cpu":
        dtype = "float32"  # bfloat16 is slower on a CPU: what is packed is computed in integers anyway
    return build_model(
        model_config,
        dtype=dtype,
        device=device,
        weights=weights,
        quantization=config.quantization,
        overrides=kernel_overrides(config),
        objective=objective_of(config),
        kv_dtype=kv_dtype_of(config),
        max_positions=config.max_model_len,
        progress=progress,
        load=load,
    )


def memory_for(config: EngineConfig, model: Decoder, device: torch.device, still_to_load: int = 0) -> MemoryPlan:
    free, total = device_memory(device)
    return memory_of(config, model, free_bytes=free - still_to_load, total_bytes=total)


def memory_of(config: EngineConfig, model: Decoder, *, free_bytes: int, total_bytes: int) -> MemoryPlan:
    """The memory of a model, built or only sketched; see `plan_memory`."""
    return plan_memory(
        config,
        model_max_len=model.config.max_position_embeddings,
        bytes_per_token=model.kv.bytes_per_token,
        layer_parameters=model.layer_parameters,
        num_layers=model.config.num_layers,
        free_bytes=free_bytes,
        total_bytes=total_bytes,
    )


def objective_of(config: EngineConfig) -> Objective:
    return Objective.DETERMINISM if config.deterministic else Objective.LATENCY


def kv_dtype_of(config: EngineConfig) -> torch.dtype | None:
    """None keeps K and V in the model's dtype."""
    return None if config.kv_cache_dtype == "auto" else DTYPES[config.kv_cache_dtype]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def open_device(config: EngineConfig) -> torch.device:
    """Raises ConfigurationError where the device is not to be had."""
    if config.device == "cpu":
        # torch's own threads spin between calls and starve a small machine; our kernels have threads that rest.
        torch.set_num_threads(1)
        set_threads(config.cpu_threads or default_threads(len(os.sched_getaffinity(0))))
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigurationError(f"{config.device} was asked for and torch sees no CUDA device: use --gpus none")
    device = torch.device(config.device)
    if (device.index or 0) >= torch.cuda.device_count():
        raise ConfigurationError(f"there is no {config.device}: torch sees {torch.cuda.device_count()} GPUs")
    torch.cuda.set_device(device)
    return device


def default_threads(cores: int) -> int:
    """Both cores of a two-core machine (measured: 1.3 to 1.8 times one), else all but one for the loops; at most 8."""
    return max(1, min(8, cores if cores <= 2 else cores - 1))


def device_memory(device: torch.device) -> tuple[int, int]:
    """(free, total) bytes."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(device)
        return free, total
    facts = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines() if ":" in line)
    return int(facts["MemAvailable"].split()[0]) * 1024, int(facts["MemTotal"].split()[0]) * 1024


def device_info(device: torch.device) -> dict[str, str]:
    if device.type != "cuda":
        return {}
    facts = {"gpu": torch.cuda.get_device_name(device), "cuda": str(torch.version.cuda)}
    try:
        import pynvml

        pynvml.nvmlInit()
        facts["driver"] = str(pynvml.nvmlSystemGetDriverVersion())
    except (ImportError, OSError, RuntimeError):
        facts["driver"] = "unknown"
    return facts


def kernel_overrides(config: EngineConfig) -> dict[str, str]:
    """Kernel families that the operator chose by flag."""
    chosen = {
        "attention": config.attention_backend,
        "gemm": config.linear_backend,
        "moe": config.moe_backend,
        "sampling": config.sampling_backend,
    }
    return {family: name for family, name in chosen.items() if name}


def open_disk(config: EngineConfig, memory: MemoryPlan, cache: KVCache, version: bytes) -> DiskStore | None:
    """The disk tier's store. Raises ConfigurationError where its folder cannot be used."""
    if not config.disk_cache_dir:
        return None
    identity = b"|".join((version, str(tuple(cache.k[0].shape[1:])).encode(), str(len(cache.k)).encode()))
    try:
        return DiskStore(Path(config.disk_cache_dir), identity, memory.page_size * memory.bytes_per_token)
    except OSError as error:
        raise ConfigurationError(f"--disk-cache-dir {config.disk_cache_dir}: {error.strerror or error}") from error


def make_executor(
    config: EngineConfig,
    model: Decoder,
    cache: KVCache,
    memory: MemoryPlan,
    disk: DiskStore | None,
    report: Report,
) -> Executor:
    sample = select(
        "sampling.sample", device=model.device, objective=objective_of(config), config=kernel_overrides(config)
    )
    if model.device.type == "cpu":
        from tsd.engine.executor.cpu import CpuExecutor

        return CpuExecutor(
            model,
            cache,
            sample,
            max_num_seqs=memory.max_num_seqs,
            max_model_len=memory.max_model_len,
            vocab_size=model.config.vocab_size,
            host_pages=memory.host_pages,
            disk=disk,
        )
    from tsd.engine.executor.cuda import CudaExecutor
    from tsd.engine.executor.planned import may_record

    return CudaExecutor(
        model,
        cache,
        sample,
        max_num_seqs=memory.max_num_seqs,
        max_model_len=memory.max_model_len,
        max_step_tokens=memory.chunked_prefill_size,
        vocab_size=model.config.vocab_size,
        device=model.device,
        use_graphs=config.cuda_graphs and may_record(model),
        timed=bool(config.trace),
        host_pages=memory.host_pages,
        disk=disk,
        report=report,
    )


def weights_version(config: EngineConfig, model: Decoder) -> bytes:
    """16 bytes that differ wherever the KV of equal tokens might: files, their sizes and times, types, seed."""
    digest = hashlib.blake2b(digest_size=16)
    path = Path(config.model)
    files = sorted(p for p in path.iterdir() if p.is_file()) if path.is_dir() else [path]
    for file in files:
        facts = file.stat()
        digest.update(f"{file.name}:{facts.st_size}:{facts.st_mtime_ns}\n".encode())
    digest.update(f"{model.dtype} {model.kv.dtype} {config.quantization} {config.load_format} {config.seed}".encode())
    return digest.digest()


def sketch_engine(config: EngineConfig) -> tuple[MemoryPlan, list[dict[str, Any]]]:
    """What a start would choose: memory and kernels. Loads no weights. Raises StartError."""
    try:
        device = open_device(config)
        model_config = load_model_config(config.model)
        model, memory = load_model(config, model_config, device, lambda *_: None, load=False)
        sample = select(
            "sampling.sample", device=device, objective=objective_of(config), config=kernel_overrides(config)
        )
        return memory, describe(model.describe_kernels(), sample)
    except (ModelError, KernelError) as error:
        raise StartError(str(error)) from error
