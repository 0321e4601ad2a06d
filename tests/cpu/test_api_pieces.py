"""A long text encoded piece by piece has the tokens of the whole, by each pre-tokenizer that models in use have."""

from __future__ import annotations

import functools
import random

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tsd.api.text import tokenizer as module
from tsd.api.text.load import load_tokenizer
from tsd.api.text.pieces import Cutter
from tsd.api.text.tokenizer import FastTokenizer, TextTooLong

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
# Takes a newline into the word after it: here no line end is a cut.
GREEDY = r"\s?\p{L}+|\s+|[^\s\p{L}]+"


def level(pattern: str) -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


PRE = {
    "gpt2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
    "llama3": lambda: level(LLAMA3),
    "qwen2": lambda: level(QWEN2),
    "greedy": lambda: level(GREEDY),
}
WORDS = [
    "hello",
    " world",
    "foo(bar)",
    "x = 1;",
    "1234567",
    "世界",
    "é",
    "e\u0301",
    "\n",
    "\n",
    "\n\n",
    "  ",
    "\t",
    " \n",
    "\r\n",
    "'s",
    "🎉",
    "<s>",
]


def text_of(seed: int, words: int) -> str:
    source = random.Random(seed)
    return "".join(source.choice(WORDS) for _ in range(words)).replace("\t", "end)\nnext")


@functools.cache
def trained(name: str) -> FastTokenizer:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = PRE[name]()
    backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet)
    backend.train_from_iterator([text_of(seed, 200) for seed in range(20)], trainer)
    backend.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    return FastTokenizer(backend)


@pytest.mark.parametrize("name", PRE)
@pytest.mark.parametrize("add_special", [False, True])
def test_pieces_have_the_tokens_of_the_whole(name: str, add_special: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = trained(name)
    assert tokenizer._cutter is not None
    cutter = Cutter(tokenizer._backend, 100)
    monkeypatch.setattr(tokenizer, "_cutter", cutter)
    monkeypatch.setattr(module, "PIECES_FROM", 200)
    most = 0
    for seed in range(8):
        text = text_of(seed, 400)
        pieces = list(cutter.pieces(text))
        assert "".join(pieces) == text
        most = max(most, len(pieces))
        whole = tokenizer._backend.encode(text, add_special_tokens=add_special).ids
        assert tokenizer.encode(text, add_special).tolist() == whole
        assert tokenizer.encode(text, add_special, len(whole)).tolist() == whole
        with pytest.raises(TextTooLong) as caught:
            tokenizer.encode(text, add_special, len(whole) - 1)
        assert caught.value.tokens == len(whole)
    assert most == 1 if name == "greedy" else most > 4


def test_the_default_models_tokenizer_in_pieces(default_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = load_tokenizer(default_model)
    assert isinstance(tokenizer, FastTokenizer)
    cutter = Cutter(tokenizer._backend, 500)
    monkeypatch.setattr(tokenizer, "_cutter", cutter)
    monkeypatch.setattr(module, "PIECES_FROM", 1000)
    text = "".join(text_of(seed, 50) for seed in range(100))
    assert len(list(cutter.pieces(text))) > 20
    for add_special in (False, True):
        assert (
            tokenizer.encode(text, add_special).tolist()
            == tokenizer._backend.encode(text, add_special_tokens=add_special).ids
        )
