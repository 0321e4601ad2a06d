"""`tsd kernels`, and the second half of `tsd start --dry-run`: memory plan and kernel choices, no weights loaded."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from tsd.engine.config import EngineConfig
from tsd.engine.errors import StartError

DESCRIPTION = """Says which kernel would run each operation of MODEL on this machine, and why each other one lost.
Reads configuration and tensor names only; no weights are loaded."""


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        "tsd kernels", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help="GGUF file or model folder")
    parser.add_argument("--device", default="cpu", help="cpu or cuda:N (default: cpu)")
    parser.add_argument("--load-format", default="auto", help="auto, safetensors, gguf or dummy")
    parser.add_argument("--dtype", default="auto", help="auto, float32, bfloat16 or float16")
    parser.add_argument("--quantization", default="auto", help="auto, none or int8")
    parser.add_argument("--deterministic", action="store_true", help="choose for bit-for-bit equal results")
    parser.add_argument("--all", action="store_true", help="show the candidates that lost")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--config-json", help=argparse.SUPPRESS)
    known = parser.parse_args(list(argv))
    if known.config_json:
        config = msgspec.json.decode(known.config_json, type=EngineConfig)
    elif known.model:
        config = EngineConfig(
            model=known.model,
            device=known.device,
            load_format=known.load_format,
            dtype=known.dtype,
            quantization=known.quantization,
            deterministic=known.deterministic,
        )
    else:
        parser.error("name a MODEL, for example the file that `tsd model` prints")
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


def table(kernels: list[dict[str, Any]], *, with_losers: bool) -> list[str]:
    lines = []
    for entry in kernels:
        sites = f"{entry['sites']} ×" if entry["sites"] > 1 else ""
        lines.append(f"{entry['op']:<22} {entry['selected']:<20} {sites:>5} {entry['shape']:<36} {entry['why']}")
        if with_losers:
            lines.extend(f"    not {each['name']:<20} {each['lost']}" for each in entry["candidates"] if each["lost"])
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
