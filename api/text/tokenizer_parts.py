"""The parts of a tokenizer.json that say how its text side works. The vocabulary is skipped."""

from __future__ import annotations

import msgspec


class DecoderPart(msgspec.Struct):
    type: str = ""
    decoders: list[DecoderPart] = []
    prepend_scheme: str = "always"
    replacement: str = "▁"
    content: str = ""
    start: int = 0


class PreTokenizerPart(msgspec.Struct):
    type: str = ""
    pretokenizers: list[PreTokenizerPart] = []
    add_prefix_space: bool = True


class TokenizerPart(msgspec.Struct):
    decoder: DecoderPart | None = None
    pre_tokenizer: PreTokenizerPart | None = None
