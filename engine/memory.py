"""How much KV memory an engine takes, and the sizes that follow from it.

`plan_memory` is a pure function of settings, model and device, so that `--dry-run` prints what a start would do.
"""

from __future__ import annotations

from dataclasses import dataclass

from tsd.engine.config import EngineConfig
from tsd.engine.errors import ConfigurationError, OutOfDeviceMemory

GIB = 1 << 30
CPU_KV_BYTES = 512 << 20
"""Without a setting, the CPU backend's KV pages take half a GiB: front and engine stay under 1.5 GB in all."""

GPU_RESERVE = 2 * GIB
"""For activations of a full prefill chunk, graphs and libraries, where the start has not measured them yet."""

MIXED_WORK = 14_000_000_000_000
"""Tokens times parameters of a step that also decodes: 40 ms of matrix products at 700 TFLOP/s."""
LEAST_MIXED = 512

PREFILL_HOLD = 40
"""Decode steps for which prompts may be held on a GPU: 8b 0.24 s, a 0.6b model 0.08 s."""
WEIGHT_BALANCE = 172
"""Tokens whose products take as long as reading the weights, two bytes each: 690 TFLOP/s over 4.0 TB/s."""
LAYER_BALANCE = 4_100_000_000
"""The same of what a layer of a step takes beside its bytes, 12 µs of launches and waits, times parameters a layer."""


@dataclass(frozen=True)
class MemoryPlan:
    """Sizes of one engine; tokens unless the name says otherwise."""

    page_size: int
    num_pages: int
    bytes_per_token: int
    max_model_len: int
    max_num_seqs: int
    chunked_prefill_size: int
    mixed_chunk_size: int
    prefill_hold: int
    prefill_balance: int
    host_pages: int
    disk_blocks: int
    reasons: dict[str, str]

    @property
    def total_tokens(self) -> int:
        return self.num_pages * self.page_size

    @property
    def kv_bytes(self) -> int:
        return self.total_tokens * self.bytes_per_token

    def rows(self) -> list[tuple[str, str, str]]:
        """(name, value, why) for people."""
        return [
            ("KV memory", f"{self.kv_bytes / GIB:.2f} GiB", self.reasons["kv"]),
            ("KV tokens", f"{self.total_tokens:,}", f"{self.num_pages:,} pages of {self.page_size} tokens"),
            ("host tier", f"{self.host_pages:,} pages", "--host-cache-gb"),
            ("disk tier", f"{self.disk_blocks:,} pages", "--disk-cache-gb"),
            ("bytes a token", f"{self.bytes_per_token:,}", "K and V of every layer"),
            ("max-model-len", f"{self.max_model_len:,}", self.reasons["max_model_len"]),
            ("max-num-seqs", f"{self.max_num_seqs:,}", self.reasons["max_num_seqs"]),
            ("chunked-prefill-size", f"{self.chunked_prefill_size:,}", self.reasons["chunk"]),
            ("mixed-chunk-size", f"{self.mixed_chunk_size:,}", self.reasons["mixed"]),
            ("prefill-hold", f"{self.prefill_hold:,} steps", self.reasons["hold"]),
        ]


def plan_memory(
    config: EngineConfig,
    *,
    model_max_len: int,
    bytes_per_token: int,
    free_bytes: int,
    total_bytes: int,
    layer_parameters: int = 0,
    num_layers: int = 0,
) -> MemoryPlan:
    """`free_bytes` is what the device has left once the weights are in; `total_bytes` is all it has.

    `layer_parameters` are the weights that every token meets, so without the vocabulary's; 0 where not known.

    Raises ConfigurationError where settings contradict each other and OutOfDeviceMemory where they do not fit.
    """
    reasons: dict[str, str] = {}
    on_gpu = config.device != "cpu"
    page_size = config.page_size or (64 if on_gpu else 16)
    if config.max_model_len > model_max_len:
        raise ConfigurationError(
            f"--max-model-len {config.max_model_len} is more than the {model_max_len} positions of the model"
        )
    max_model_len = config.max_model_len or model_max_len
    reasons["max_model_len"] = "--max-model-len" if config.max_model_len else "the model's own"
    max_num_seqs = config.max_num_seqs or (256 if on_gpu else 64)
    reasons["max_num_seqs"] = (
        "--max-num-seqs" if config.max_num_seqs else f"default on {'a GPU' if on_gpu else 'the CPU'}"
    )
    chunk = config.chunked_prefill_size or (4096 if on_gpu else 512)
    reasons["chunk"] = "--chunked-prefill-size" if config.chunked_prefill_size else "default"
    mixed, reasons["mixed"] = min(config.mixed_chunk_size or chunk, chunk), "as chunked-prefill-size"
    if config.mixed_chunk_size:
        reasons["mixed"] = "--mixed-chunk-size"
    elif on_gpu and layer_parameters and (bound := -(-MIXED_WORK // layer_parameters // 64) * 64) < chunk:
        mixed, reasons["mixed"] = max(LEAST_MIXED, bound), "how long decoding rows may wait, by the model's size"
    hold, balance, reasons["hold"] = _prefill_pace(config, layer_parameters, num_layers, mixed, chunk)
    if chunk < max_num_seqs:
        raise ConfigurationError(
            f"--chunked-prefill-size {chunk} is less than --max-num-seqs {max_num_seqs}: each running request "
            "needs one token of every step"
        )
    if config.max_total_tokens:
        tokens = config.max_total_tokens
        reasons["kv"] = "--max-total-tokens"
    elif on_gpu:
        budget = free_bytes - int(total_bytes * (1.0 - config.gpu_memory_utilization)) - GPU_RESERVE
        tokens = budget // bytes_per_token
        reasons["kv"] = f"--gpu-memory-utilization {config.gpu_memory_utilization} of {total_bytes / GIB:.1f} GiB"
    else:
        tokens = CPU_KV_BYTES // bytes_per_token
        reasons["kv"] = "default on the CPU; --max-total-tokens changes it"
    num_pages = tokens // page_size
    if num_pages * page_size < min(max_model_len, 2 * page_size) or num_pages < 2:
        raise OutOfDeviceMemory(
            f"{free_bytes / GIB:.2f} GiB free of {total_bytes / GIB:.2f} leave room for {max(0, tokens)} tokens of "
            f"{bytes_per_token} bytes, which is not two pages of {page_size}: raise --gpu-memory-utilization, or "
            "lower --page-size"
        )
    needed = num_pages * page_size * bytes_per_token
    if needed > free_bytes:
        raise OutOfDeviceMemory(
            f"KV memory for {num_pages * page_size:,} tokens needs {needed / GIB:.2f} GiB and {free_bytes / GIB:.2f} "
            "are free: lower --max-total-tokens"
        )
    if max_model_len > num_pages * page_size:
        max_model_len = num_pages * page_size
        reasons["max_model_len"] = "cut to what the KV memory holds"
        if config.max_model_len:
            raise OutOfDeviceMemory(
                f"--max-model-len {config.max_model_len} needs more than the {max_model_len} tokens of KV memory: "
                "lower it, or raise --max-total-tokens or --gpu-memory-utilization"
            )
    host_pages = int(config.host_cache_gb * GIB) // (page_size * bytes_per_token)
    if bool(config.disk_cache_dir) != bool(config.disk_cache_gb):
        raise ConfigurationError("--disk-cache-dir and --disk-cache-gb go together")
    if config.disk_cache_dir and not host_pages:
        raise ConfigurationError("--disk-cache-dir needs --host-cache-gb: pages go to disk by way of host memory")
    return MemoryPlan(
        page_size=page_size,
        num_pages=num_pages,
        bytes_per_token=bytes_per_token,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        chunked_prefill_size=chunk,
        mixed_chunk_size=mixed,
        prefill_hold=hold,
        prefill_balance=balance,
        host_pages=host_pages,
        disk_blocks=int(config.disk_cache_gb * GIB) // (page_size * bytes_per_token),
        reasons=reasons,
    )


def _prefill_pace(
    config: EngineConfig, layer_parameters: int, num_layers: int, mixed: int, chunk: int
) -> tuple[int, int, str]:
    """For how many decode steps prompts may be held, the tokens at which a step is in balance, and why.

    On the CPU a step's time is nearly all arithmetic: prompts held there gain nothing. Nor do they with a model so
    small that rows which decode may wait for a whole chunk: its short steps cost nearly what long ones do.
    """
    on_gpu = config.device != "cpu" and layer_parameters > 0
    balance = 0
    if on_gpu:
        balance = 64 * round((WEIGHT_BALANCE + LAYER_BALANCE * num_layers / layer_parameters) / 64)
    hold = config.prefill_hold
    why = "--prefill-hold"
    if hold is None:
        if not on_gpu:
            hold, why = 0, "default on the CPU"
        elif mixed == chunk:
            hold, why = 0, "default where a whole chunk is a short wait"
        else:
            hold, why = PREFILL_HOLD, "default for a model of this size"
    if not config.mixed_batch:
        return 0, 0, "--no-mixed-batch"
    if hold and balance:
        why += f"; then in steps of {min(2 * balance, mixed):,} tokens"
    return hold, balance, why
