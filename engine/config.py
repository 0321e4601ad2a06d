"""What one engine process is told at its start. Frozen; resolved once by the command line (`console/options.py`)."""

from __future__ import annotations

import msgspec


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Sent to the engine process as JSON on its command line's file descriptor; zeros mean `derive at start`."""

    model: str
    """A GGUF file, or a folder with config.json (and weights unless load_format is dummy)."""
    served_model_name: str = ""
    load_format: str = "auto"
    """auto, safetensors, gguf or dummy."""
    dtype: str = "auto"
    """auto, float32, bfloat16 or float16."""
    quantization: str = "auto"
    """auto keeps packed weights packed where a kernel reads them; none gives full precision; int8 packs dense ones."""
    device: str = "cpu"
    """cpu or cuda:N."""
    engine: int = 0
    seed: int = 0
    page_size: int = 0
    max_model_len: int = 0
    max_num_seqs: int = 0
    max_total_tokens: int = 0
    chunked_prefill_size: int = 0
    mixed_chunk_size: int = 0
    prefill_hold: int | None = None
    """Steps that may decode while prompts wait; None is derived, 0 never."""
    mixed_batch: bool = True
    prefix_cache: bool = True
    gpu_memory_utilization: float = 0.9
    kv_cache_dtype: str = "auto"
    host_cache_gb: float = 0.0
    disk_cache_dir: str = ""
    disk_cache_gb: float = 0.0
    deterministic: bool = False
    cuda_graphs: bool = True
    overlap: bool = True
    attention_backend: str = ""
    linear_backend: str = ""
    moe_backend: str = ""
    sampling_backend: str = ""
    cpu_threads: int = 0
    max_queued_requests: int = 4096
    max_queued_tokens: int = 16_777_216
    kv_events_config: str = ""
    trace: str = ""
    trust_remote_code: bool = False
    log_level: str = "info"
