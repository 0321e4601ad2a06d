"""The options of `tsd start`: one table, resolved once as command line > environment > configuration file > default.

Owns names, types, help and where each value came from. Knows nothing about what the values do.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tsd.console.errors import UsageError


@dataclass(frozen=True)
class Option:
    """One option. `kind` turns text into a value and raises ValueError with a reason; bool makes a switch."""

    name: str
    kind: Callable[[str], Any]
    default: Any
    help: str
    group: str
    choices: tuple[str, ...] = ()
    repeat: bool = False
    secret: bool = False

    @property
    def key(self) -> str:
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        return "TSD_" + self.key.upper()


class Setting(NamedTuple):
    value: Any
    source: str


Settings = dict[str, Setting]


def tokens(text: str) -> int:
    """A count that may end in k or m (1024-based): `32k` is 32768."""
    scale = {"k": 1024, "m": 1024 * 1024}.get(text[-1:].lower(), 1)
    digits = text[:-1] if scale > 1 else text
    if not digits.isdigit():
        raise ValueError("expected a whole number, such as 8192 or 32k")
    return int(digits) * scale


def positive(text: str) -> int:
    value = tokens(text)
    if value < 1:
        raise ValueError("must be at least 1")
    return value


def fraction(text: str) -> float:
    value = float(text)
    if not 0.0 < value <= 1.0:
        raise ValueError("must be over 0 and at most 1")
    return value


def size(text: str) -> float:
    value = float(text)
    if not 0.0 <= value < 1e9:
        raise ValueError("must not be negative")
    return value


def seconds(text: str) -> float:
    return size(text)


def port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 65535:
        raise ValueError("must be between 0 and 65535")
    return value


def gpu_list(text: str) -> tuple[int, ...] | None:
    """`0,2-3` → (0, 2, 3); `none` → (); `auto` → None, the first GPU where there is one."""
    if text == "auto":
        return None
    if text in ("none", "cpu"):
        return ()
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise ValueError("expected none, auto, or numbers such as 0,1 or 0-7")
        found.extend(range(int(first), int(last or first) + 1))
    if not found or len(set(found)) != len(found):
        raise ValueError("names no GPU, or one twice")
    return tuple(found)


SERVER, MODEL, MEMORY, SCHEDULING, KERNELS, TEXT, OPERATION = (
    "Server",
    "Model",
    "Memory",
    "Scheduling",
    "Kernels",
    "Templates and parsers",
    "Operation",
)

OPTIONS: tuple[Option, ...] = (
    Option("host", str, "127.0.0.1", "address to listen on", SERVER),
    Option("port", port, 8000, "port to listen on; 0 takes a free one and prints it", SERVER),
    Option("api-key", str, (), "key that clients must send; repeat for several", SERVER, repeat=True, secret=True),
    Option("admin-key", str, "", "key for the admin routes and the console", SERVER, secret=True),
    Option("cache-salt-per-key", bool, False, "keep the cached prefixes of each API key apart", SERVER),
    Option("api-workers", positive, 1, "front processes that share the port", SERVER),
    Option("cors-origin", str, (), "origin that browsers may call from; repeat for several", SERVER, repeat=True),
    Option("tls-certfile", str, "", "certificate chain (PEM)", SERVER),
    Option("tls-keyfile", str, "", "private key (PEM)", SERVER),
    Option(
        "limit",
        str,
        (),
        "NAME=NUMBER, another bound on what a request may ask, such as n=16; repeat for several (api/README.md)",
        SERVER,
        repeat=True,
    ),
    Option("request-timeout", seconds, 0.0, "seconds after which a request is ended; 0 for never", SERVER),
    Option("gpus", gpu_list, None, "GPUs to serve on: 0,1 or 0-7, none for the CPU, or auto", MODEL),
    Option("served-model-name", str, "", "name that clients use; the model's own by default", MODEL),
    Option("tokenizer", str, "", "folder or file with the tokenizer, where the model has none", MODEL),
    Option(
        "load-format",
        str,
        "auto",
        "where weights come from; dummy makes random ones from a config.json alone",
        MODEL,
        choices=("auto", "safetensors", "gguf", "dummy"),
    ),
    Option("dtype", str, "auto", "type to compute in", MODEL, choices=("auto", "float32", "bfloat16", "float16")),
    Option(
        "quantization",
        str,
        "auto",
        "auto computes with packed weights as they are where a kernel can; none unpacks them to full precision",
        MODEL,
        choices=("auto", "none", "int8"),
    ),
    Option("seed", tokens, 0, "seed of random weights and of rows that name none", MODEL),
    Option("trust-remote-code", bool, False, "allow a model folder's own Python code (none is needed today)", MODEL),
    Option("max-model-len", positive, 0, "longest prompt plus answer, in tokens; the model's own by default", MEMORY),
    Option("gpu-memory-utilization", fraction, 0.9, "share of a GPU's memory to use", MEMORY),
    Option("max-total-tokens", positive, 0, "tokens of KV memory; what fits by default", MEMORY),
    Option("page-size", positive, 0, "tokens in a KV page; 16 on the CPU, 64 on a GPU by default", MEMORY),
    Option(
        "kv-cache-dtype",
        str,
        "auto",
        "type of K and V",
        MEMORY,
        choices=("auto", "float32", "bfloat16", "float16"),
    ),
    Option("host-cache-gb", size, 0.0, "host memory for evicted KV pages, in GiB", MEMORY),
    Option("host-cache", bool, True, "keep evicted KV pages in host memory", MEMORY),
    Option("disk-cache-dir", str, "", "folder for KV pages on disk", MEMORY),
    Option("disk-cache-gb", size, 0.0, "disk space for KV pages, in GiB", MEMORY),
    Option("prefix-cache", bool, True, "reuse the KV pages of equal prefixes", MEMORY),
    Option("max-num-seqs", positive, 0, "requests that run at once; 64 on the CPU, 256 on a GPU", SCHEDULING),
    Option("chunked-prefill-size", positive, 0, "token budget of one step", SCHEDULING),
    Option(
        "mixed-chunk-size",
        positive,
        0,
        "the same of a step that also decodes; by the model's size on a GPU",
        SCHEDULING,
    ),
    Option(
        "prefill-hold",
        tokens,
        None,
        "steps that may decode while prompts wait, so that these are computed together: fewer and shorter waits for "
        "rows that decode, a later first token under load; 0 starts each prompt at once (default: 40 on a GPU for "
        "models whose --mixed-chunk-size is bounded by their size, else 0)",
        SCHEDULING,
    ),
    Option("mixed-batch", bool, True, "prefill and decode in one step", SCHEDULING),
    Option("max-queued-requests", positive, 4096, "waiting requests before new ones get 429", SCHEDULING),
    Option("max-queued-tokens", positive, 16 * 1024 * 1024, "waiting prompt tokens before 429", SCHEDULING),
    Option("deterministic", bool, False, "results independent of batch, cache and chunking, bit for bit", KERNELS),
    Option("cuda-graphs", bool, True, "capture decode steps as CUDA graphs", KERNELS),
    Option("overlap", bool, True, "launch a step while the one before is processed", KERNELS),
    Option(
        "attention-backend",
        str,
        "",
        "kernel for attention, such as triton, fa3 or flashinfer; `tsd kernels --all` says which can run",
        KERNELS,
    ),
    Option("linear-backend", str, "", "kernel for matrix products", KERNELS),
    Option("moe-backend", str, "", "kernel for expert layers", KERNELS),
    Option("sampling-backend", str, "", "kernel for sampling", KERNELS),
    Option(
        "cpu-threads",
        positive,
        0,
        "threads that compute on the CPU backend; at most 8 by default, one core left free",
        KERNELS,
    ),
    Option("tensor-parallel-size", positive, 1, "GPUs that share one model", KERNELS),
    Option("data-parallel-size", positive, 0, "copies of the model; one for each GPU by default", KERNELS),
    Option("enable-expert-parallel", bool, False, "spread experts over GPUs", KERNELS),
    Option("chat-template", str, "", "Jinja file that replaces the model's chat template", TEXT),
    Option("reasoning-parser", str, "", "how reasoning is marked in the model's text", TEXT),
    Option("tool-call-parser", str, "", "how tool calls are marked in the model's text", TEXT),
    Option("log-level", str, "info", "least severity to log", OPERATION, choices=("debug", "info", "warning", "error")),
    Option("log-requests", bool, False, "one JSON line for each request on standard output", OPERATION),
    Option("otlp-traces-endpoint", str, "", "trace requests to this OTLP/HTTP URL (…:4318/v1/traces)", OPERATION),
    Option("drain-timeout", seconds, 30.0, "seconds that a stop waits for running requests", OPERATION),
    Option("kv-events-config", str, "", 'JSON such as {"endpoint": "tcp://127.0.0.1:5557"}', OPERATION),
    Option("trace", str, "", "file for a Chrome trace of host phases and device steps", OPERATION),
)

BY_KEY: Mapping[str, Option] = {option.key: option for option in OPTIONS}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    groups: dict[str, Any] = {}
    for option in OPTIONS:
        group = groups.get(option.group) or groups.setdefault(option.group, parser.add_argument_group(option.group))
        shown = "" if option.default in (None, "", (), 0, 0.0) else f" (default: {_text(option.default)})"
        flags: dict[str, Any] = {"default": argparse.SUPPRESS, "dest": option.key, "help": option.help + shown}
        if option.kind is bool:
            group.add_argument(f"--{option.name}", action=argparse.BooleanOptionalAction, **flags)
        elif option.repeat:
            group.add_argument(f"--{option.name}", action="append", metavar="VALUE", **flags)
        else:
            metavar = "{" + ",".join(option.choices) + "}" if option.choices else "VALUE"
            group.add_argument(f"--{option.name}", metavar=metavar, **flags)


def refuse_unknown(unknown: Sequence[str], known: Sequence[str]) -> None:
    """Raises UsageError for the first flag that is not one of ours, naming the nearest."""
    for argument in unknown:
        name = argument.split("=", 1)[0]
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]}?" if near else ""
        kind = "unknown flag" if name.startswith("-") else "unexpected argument"
        raise UsageError(f"{kind} {name}{hint}")


def resolve(given: Mapping[str, Any], environ: Mapping[str, str], config_file: str | None) -> Settings:
    """Every option with its value and its source. Raises UsageError naming the place of a bad value."""
    from_file = _read_file(config_file) if config_file else {}
    known = {option.variable for option in OPTIONS} | {"TSD_CONFIG", "TSD_HOME", "TSD_VENV", "TSD_TEST_MODEL"}
    for name in environ:
        if name.startswith("TSD_") and name not in known and not name.startswith("TSD_KERNEL_"):
            near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.8)
            if near:
                raise UsageError(f"unknown environment variable {name}; did you mean {near[0]}?")
    settings: Settings = {}
    for option in OPTIONS:
        if option.key in given:
            settings[option.key] = Setting(_parse(option, given[option.key], f"--{option.name}"), "command line")
        elif option.variable in environ:
            settings[option.key] = Setting(_parse(option, environ[option.variable], option.variable), "environment")
        elif option.key in from_file:
            where = f"{config_file}: {option.name}"
            settings[option.key] = Setting(_parse(option, from_file[option.key], where), config_file or "")
        else:
            settings[option.key] = Setting(option.default, "default")
    return settings


def describe(settings: Settings) -> list[tuple[str, str, str]]:
    """(name, value, source) rows; secrets are not shown."""
    rows = []
    for option in OPTIONS:
        value, source = settings[option.key]
        shown = ("set" if value else "not set") if option.secret else _text(value)
        rows.append((option.name, shown, source))
    return rows


def _text(value: Any) -> str:
    if value is None:
        return "auto"
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parse(option: Option, raw: Any, where: str) -> Any:
    if option.repeat:
        items = raw if isinstance(raw, list) else str(raw).split(",")
        return tuple(str(item) for item in items if str(item))
    if option.kind is bool:
        if isinstance(raw, bool):
            return raw
        text = str(raw).strip().lower()
        if text in ("1", "true", "yes", "on"):
            return True
        if text in ("0", "false", "no", "off"):
            return False
        raise UsageError(f"{where}: expected true or false, not {raw!r}")
    if isinstance(raw, (list, tuple)):
        raw = ",".join(map(str, raw))
    text = str(raw).strip()
    if option.choices and text not in option.choices:
        near = difflib.get_close_matches(text, option.choices, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UsageError(f"{where}: {text!r} is not one of {', '.join(option.choices)}{hint}")
    try:
        return option.kind(text)
    except ValueError as error:
        raise UsageError(f"{where}: {text!r}: {error}") from None


def _read_file(path: str) -> dict[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not YAML: {error}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UsageError(f"{path}: expected a mapping of option names to values")
    values = {}
    for key, value in content.items():
        name = str(key).replace("-", "_")
        if name not in BY_KEY and name != "model":
            near = difflib.get_close_matches(name, [*BY_KEY, "model"], n=1, cutoff=0.5)
            hint = f"; did you mean {near[0].replace('_', '-')}?" if near else ""
            raise UsageError(f"{path}: unknown option {key}{hint}")
        if value is not None:
            values[name] = value
    return values


def model_from_file(path: str | None) -> str | None:
    """The `model` of a configuration file, where it names one."""
    found = _read_file(path).get("model") if path else None
    return None if found is None else str(found)
