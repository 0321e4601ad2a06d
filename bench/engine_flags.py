"""The flags that `latency` and `throughput` share. Imports nothing of the engine: `--help` must be quick."""

from __future__ import annotations

import argparse


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """Which model, where, and how; names as those of `tsd start`."""
    add = parser.add_argument_group("the engine").add_argument
    add("model", metavar="MODEL", help="GGUF file or model folder (`tsd model` prints the default one's path)")
    add("--device", default="cpu", help="cpu or cuda:N (default: %(default)s)")
    add("--load-format", default="auto", choices=("auto", "safetensors", "gguf", "dummy"))
    add("--dtype", default="auto", choices=("auto", "float32", "bfloat16", "float16"))
    add("--quantization", default="auto", help="auto, none, int8 (default: %(default)s)")
    add("--max-model-len", type=int, default=0, metavar="T")
    add("--max-num-seqs", type=int, default=0, metavar="N")
    add("--max-total-tokens", type=int, default=0, metavar="T", help="KV memory in tokens (default: what fits)")
    add("--chunked-prefill-size", type=int, default=0, metavar="T")
    add("--cpu-threads", type=int, default=0, metavar="N")
    add("--prefix-cache", action="store_true", help="keep prefixes between requests (default: off, prompts are fresh)")
    add("--no-cuda-graphs", action="store_true")
    add("--no-overlap", action="store_true", help="one step at a time")
    add("--seed", type=int, default=0)
