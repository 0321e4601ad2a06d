"""Finds a model's tokenizer: a GGUF file's metadata, a folder's tokenizer.json, or none (the numeric one)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import tokenizers

from tsd.api.text.gguf_metadata import GgufError, read_metadata
from tsd.api.text.gguf_vocab import tokenizer_from_metadata
from tsd.api.text.numeric import NumericTokenizer
from tsd.api.text.tokenizer import FastTokenizer, Tokenizer, TokenizerError

_DEFAULT_VOCAB = 32_000


def load_tokenizer(location: str) -> Tokenizer:
    """Raises TokenizerError, naming the file, where what is there cannot be used."""
    path = Path(location)
    if path.is_file():
        try:
            return tokenizer_from_metadata(read_metadata(path, "tokenizer."))
        except (GgufError, TokenizerError) as error:
            raise TokenizerError(f"{path}: {error}") from error
    if (path / "tokenizer.json").is_file():
        return _from_folder(path)
    return _numeric(path)


def _from_folder(path: Path) -> FastTokenizer:
    source = (path / "tokenizer.json").read_bytes()
    try:
        backend = tokenizers.Tokenizer.from_buffer(source)
    except Exception as error:  # the binding raises bare Exception
        raise TokenizerError(f"{path / 'tokenizer.json'}: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    config = _json(path / "tokenizer_config.json")
    template = _text(path / "chat_template.jinja") or _template(config.get("chat_template"))
    if template is None:
        template = _template(_json(path / "chat_template.json").get("chat_template"))
    return FastTokenizer(
        backend,
        source=source,
        chat_template=template,
        bos_token=_token(config.get("bos_token")),
        eos_token=_token(config.get("eos_token")),
        eos_ids=_eos(path),
    )


def _numeric(path: Path) -> NumericTokenizer:
    config = _json(path / "config.json")
    text = config.get("text_config")
    size = config.get("vocab_size") or (text.get("vocab_size") if isinstance(text, dict) else None)
    return NumericTokenizer(int(size or _DEFAULT_VOCAB), _eos(path))


def _eos(path: Path) -> tuple[int, ...]:
    ids: dict[int, None] = {}
    for name in ("generation_config.json", "config.json"):
        value = _json(path / name).get("eos_token_id")
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, int):
                ids[item] = None
    return tuple(ids)


def _json(path: Path) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        return {}
    except msgspec.DecodeError as error:
        raise TokenizerError(f"{path}: {error}") from error
    return value if isinstance(value, dict) else {}


def _text(path: Path) -> str | None:
    return path.read_text() if path.is_file() else None


def _token(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _template(value: Any) -> str | None:
    """One template, or a list of named ones of which `default` is meant."""
    if isinstance(value, list):
        named = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
        value = named.get("default") or next(iter(named.values()), None)
    return value if isinstance(value, str) else None
