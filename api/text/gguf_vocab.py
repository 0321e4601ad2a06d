"""Builds a tokenizer from the vocabulary in a GGUF file's metadata: byte-level BPE, or SentencePiece BPE.

Sources of the facts: the GGUF specification (token types, keys) and each family's published tokenizer.json (its
pre-tokenizer's expression).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from tsd.api.text.tokenizer import FastTokenizer, TokenizerError

_CONTROL, _USER_DEFINED = 3, 4

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLITS = {
    "llama-bpe": _WORDS + r"\p{N}{1,3}" + _REST,
    "llama3": _WORDS + r"\p{N}{1,3}" + _REST,
    "qwen2": _WORDS + r"\p{N}" + _REST,
}


def tokenizer_from_metadata(fields: dict[str, Any]) -> FastTokenizer:
    """`fields` holds the `tokenizer.*` pairs. Raises TokenizerError for a model that is not supported."""
    model = fields.get("tokenizer.ggml.model")
    tokens: list[str] = fields.get("tokenizer.ggml.tokens", [])
    if not tokens:
        raise TokenizerError("the GGUF file holds no tokenizer")
    if model == "gpt2":
        backend = _byte_level(fields, tokens)
    elif model == "llama":
        backend = _sentencepiece(fields, tokens)
    else:
        raise TokenizerError(f"GGUF tokenizer model {model!r} is not supported (gpt2 and llama are)")
    kinds: Sequence[int] = fields.get("tokenizer.ggml.token_type", [])
    controls = [
        AddedToken(tokens[i], special=True, normalized=False) for i, kind in enumerate(kinds) if kind == _CONTROL
    ]
    users = [
        AddedToken(tokens[i], special=False, normalized=False) for i, kind in enumerate(kinds) if kind == _USER_DEFINED
    ]
    backend.add_special_tokens(controls)
    backend.add_tokens(users)
    bos, eos = (fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos"))
    bos_token, eos_token = (tokens[i] if i is not None and i < len(tokens) else "" for i in (bos, eos))
    adds_bos = fields.get(
        "tokenizer.ggml.add_bos_token", model == "llama" or fields.get("tokenizer.ggml.pre") == "llama-bpe"
    )
    if adds_bos and bos_token:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{bos_token}:0 $A:0", pair=f"{bos_token}:0 $A:0 $B:1", special_tokens=[(bos_token, bos)]
        )
    extra = (fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("eot", "eom"))
    return FastTokenizer(
        backend,
        chat_template=fields.get("tokenizer.chat_template"),
        bos_token=bos_token,
        eos_token=eos_token,
        eos_ids=tuple(i for i in (eos, *extra) if i is not None),
    )


def _byte_level(fields: dict[str, Any], tokens: list[str]) -> tokenizers.Tokenizer:
    merges = [tuple(merge.split(" ", 1)) for merge in fields.get("tokenizer.ggml.merges", [])]
    pre = fields.get("tokenizer.ggml.pre", "default")
    vocab = {token: index for index, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(models.BPE(vocab, merges, ignore_merges=pre in ("llama-bpe", "llama3")))
    split = _SPLITS.get(pre)
    if split is not None:
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(split), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    elif pre == "smollm":
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    elif pre in ("default", "gpt-2", "gpt2"):
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        raise TokenizerError(f"GGUF pre-tokenizer {pre!r} is not supported")
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(fields: dict[str, Any], tokens: list[str]) -> tokenizers.Tokenizer:
    """Merges are not in the file: every split of a piece into two pieces is one, best score first."""
    scores = fields.get("tokenizer.ggml.scores", [0.0] * len(tokens))
    vocab = {token: index for index, token in enumerate(tokens)}
    ranked: list[tuple[float, int, int, str, str]] = []
    for token, index in vocab.items():
        for cut in range(1, len(token)):
            left, right = vocab.get(token[:cut]), vocab.get(token[cut:])
            if left is not None and right is not None:
                ranked.append((-scores[index], left, right, token[:cut], token[cut:]))
    ranked.sort()
    unknown = fields.get("tokenizer.ggml.unknown_token_id", 0)
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab,
            [(left, right) for *_, left, right in ranked],
            unk_token=tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = fields.get("tokenizer.ggml.add_space_prefix", True)
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", "▁")]
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), *steps] if prefix else steps)
    decode: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*decode, decoders.Strip(" ", 1, 0)] if prefix else decode)
    return backend
