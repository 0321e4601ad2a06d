"""`tsd kernels`, and the second half of `tsd start --dry-run`: memory plan and kernel choices, no weights loaded."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import msgspec

from tsd.engine.config import EngineConfig
from tsd.engine.errors import StartError
from tsd.engine.model_errors import ModelError
from tsd.kernels.platform import Platform
from tsd.kernels.spec import KernelError

KNOWN_GPUS = {"h200": (Platform("cuda", "NVIDIA H200", capability=(9, 0)), 140 << 30)}
"""GPUs to compile for without having them, and their memory."""

DESCRIPTION = """Says which kernel would run each operation of MODEL on this machine, and why each other one lost.
Reads configuration and tensor names only; no weights are loaded.

With --build the kernels are compiled instead, into the cache that `tsd start` reads (TRITON_CACHE_DIR, else
~/.triton/cache): after it a first start compiles nothing. Give it the sizes that `tsd start` will be given. --gpu
compiles for a GPU that this machine has not, for an image that is made elsewhere."""


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        "tsd kernels", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help="GGUF file or model folder")
    parser.add_argument("--device", default="", help="cpu or cuda:N (default: cpu, and cuda:0 with --build)")
    parser.add_argument("--load-format", default="auto", help="auto, safetensors, gguf or dummy")
    parser.add_argument("--dtype", default="auto", help="auto, float32, bfloat16 or float16")
    parser.add_argument("--quantization", default="auto", help="auto, none or int8")
    parser.add_argument("--attention-backend", default="", help="as for `tsd start`, e.g. fa3 or flashinfer")
    parser.add_argument("--deterministic", action="store_true", help="choose for bit-for-bit equal results")
    parser.add_argument("--all", action="store_true", help="show the candidates that lost")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--build", action="store_true", help="compile MODEL's kernels for the GPU, ahead of a start")
    parser.add_argument("--gpu", choices=sorted(KNOWN_GPUS), help="with --build: the GPU, where it is not here")
    for size in ("max-num-seqs", "max-model-len", "chunked-prefill-size", "page-size"):
        parser.add_argument(f"--{size}", type=int, default=0, help="with --build: as for `tsd start`")
    parser.add_argument("--config-json", help=argparse.SUPPRESS)
    known = parser.parse_args(list(argv))
    if known.config_json:
        config = msgspec.json.decode(known.config_json, type=EngineConfig)
    elif known.model:
        config = EngineConfig(
            model=known.model,
            device=known.device or ("cuda:0" if known.build else "cpu"),
            load_format=known.load_format,
            dtype=known.dtype,
            quantization=known.quantization,
            attention_backend=known.attention_backend,
            deterministic=known.deterministic,
            max_num_seqs=known.max_num_seqs,
            max_model_len=known.max_model_len,
            chunked_prefill_size=known.chunked_prefill_size,
            page_size=known.page_size,
        )
    else:
        parser.error("name a MODEL, for example the file that `tsd model` prints")
    if known.build:
        return build_kernels(config, known.gpu)
    from tsd.engine.build import sketch_engine

    try:
        memory, kernels = sketch_engine(config)
    except StartError as error:
        print(f"tsd: {error}", file=sys.stderr)
        return 3
    if known.json:
        print(msgspec.json.encode(kernels).decode())
        return 0
    if known.config_json:
        print("memory")
        for name, value, why in memory.rows():
            print(f"  {name:<24} {value:<28} {why}")
    print("kernels")
    for line in table(kernels, with_losers=known.all):
        print(f"  {line}")
    return 0


def build_kernels(config: EngineConfig, gpu: str | None) -> int:
    """Compiles what an engine of `config` launches on its device, or on a known GPU. Returns the exit code."""
    from tsd.engine import compile_command
    from tsd.kernels.ahead import AheadError
    from tsd.kernels.platform import DriverError, ask_driver

    if find_spec("triton") is None:
        print("tsd: Triton is not installed: there is nothing to compile", file=sys.stderr)
        return 3
    began = time.monotonic()

    def progress(done: int, of: int) -> None:
        if sys.stderr.isatty():
            print(f"\r{done} of {of} kernels", end="" if done < of else "\n", file=sys.stderr, flush=True)

    try:
        index = int(config.device.partition(":")[2] or 0)
        platform, memory_bytes = KNOWN_GPUS[gpu] if gpu else ask_driver(index)
        count = compile_command.build(config, platform, memory_bytes, progress, here=gpu is None)
    except (AheadError, DriverError, KernelError, ModelError, StartError) as error:
        print(f"tsd: {error}", file=sys.stderr)
        return 3
    print(f"{count} kernels for {platform.name}, compiled or found in {time.monotonic() - began:.1f} s")
    return 0


def table(kernels: list[dict[str, Any]], *, with_losers: bool) -> list[str]:
    lines = []
    for entry in kernels:
        sites = f"{entry['sites']} ×" if entry["sites"] > 1 else ""
        lines.append(
            f"{entry['op']:<22} {entry['selected']:<20} {sites:>5} {entry['shape']:<36} {entry['why']}{_graphs(entry)}"
        )
        if with_losers:
            lines.extend(f"    not {each['name']:<20} {each['lost']}" for each in entry["candidates"] if each["lost"])
    return lines


def _graphs(entry: dict[str, Any]) -> str:
    return {"planned": "; planned on the host before each step", "no": "; no CUDA graphs"}.get(entry["graphs"], "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
