"""A model folder whose tokens are bytes, with special tokens and a chat template: any text can be scripted."""

from __future__ import annotations

import json
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import tokenizers
from support.front_server import Server, serving
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from tsd.api.text.tokenizer import byte_level_piece
from tsd.engine.protocol import Submit

SPECIALS = ("<|im_start|>", "<|im_end|>", "[TOOL_CALLS]")
PLAIN_ADDED = ("<think>", "</think>")
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if tools %}tools: {{ tools | tojson }}\n{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
END = 257


def write_model(folder: Path, template: str = CHATML) -> str:
    """Writes it and returns the folder; ids: 0–255 bytes, then SPECIALS, then PLAIN_ADDED."""
    characters = {byte_level_piece(chr(code)): chr(code) for code in range(0x180)}
    vocab = {characters[bytes([value])]: value for value in range(256)}
    backend = tokenizers.Tokenizer(models.BPE(vocab, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIALS])
    backend.add_tokens([AddedToken(text, normalized=False) for text in PLAIN_ADDED])
    backend.save(str(folder / "tokenizer.json"))
    config = {"chat_template": template, "eos_token": "<|im_end|>", "bos_token": None}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"vocab_size": 300, "eos_token_id": END}))
    return str(folder)


def encode(text: str) -> list[int]:
    ids = []
    names = {name: 256 + index for index, name in enumerate((*SPECIALS, *PLAIN_ADDED))}
    while text:
        name = next((name for name in names if text.startswith(name)), None)
        if name is not None:
            ids.append(names[name])
            text = text[len(name) :]
        else:
            ids += text[0].encode()
            text = text[1:]
    return ids


def saying(text: str) -> Callable[[Submit, array], list[int]]:
    """A script: the model says `text` and ends."""
    return lambda submit, prompt: [*encode(text), END]


@asynccontextmanager
async def model_that_says(
    folder: Path,
    text: str,
    template: str = CHATML,
    tokens_per_step: int = 1,
    options_keys: tuple[str, ...] = (),
    **options: Any,
) -> AsyncIterator[Server]:
    """A front over a fake engine that answers every request with `text`; `options` are the server's."""
    path = write_model(folder, template)
    engine: dict[str, Any] = {"vocab_size": 300, "max_model_len": 8192, "eos": (END,), "script": saying(text)}
    settings = {"api_keys": options_keys, **options}
    async with serving(model=path, options=settings, tokens_per_step=tokens_per_step, **engine) as server:
        yield server
