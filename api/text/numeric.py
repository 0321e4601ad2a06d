"""The tokenizer of a model folder that has none: text is token ids with spaces between ("12 7 99").

A word that is not an id stands for one derived from its bytes, so that any text can be a prompt.
"""

from __future__ import annotations

import zlib
from array import array

from tsd.api.text.detokenizer import ByteDetokenizer, ByteTable, Detokenizer
from tsd.api.text.tokenizer import Vocabulary, check_tokens


class NumericTokenizer:
    """Decodes id 12 to " 12"."""

    def __init__(self, vocab_size: int, eos_ids: tuple[int, ...] = ()) -> None:
        pieces = [b" %d" % token for token in range(vocab_size)]
        self._table = ByteTable(pieces)
        self.vocabulary = Vocabulary(size=vocab_size, specials={}, special_ids=frozenset(), eos_ids=eos_ids)
        self.chat_template: str | None = (
            "{% for message in messages %}{{ message.role }} {{ message.content }} {% endfor %}"
        )
        self.bos_token = ""
        self.eos_token = ""
        self.max_characters_per_token = 1 << 30

    def encode(self, text: str, add_special: bool = True, limit: int | None = None) -> array[int]:
        size = self.vocabulary.size
        ids = array("i")
        words = text.split()
        check_tokens(len(words), limit)
        for word in words:
            if word.isdecimal() and word.isascii() and len(word) < 10 and int(word) < size:
                ids.append(int(word))
            else:
                ids.append(zlib.crc32(word.encode()) % size)
        return ids

    def encode_plain(self, text: str, limit: int | None = None) -> array[int]:
        return self.encode(text, limit=limit)

    def decode(self, ids: list[int] | array[int], skip_special: bool = True) -> str:
        stream = ByteDetokenizer(self._table)
        return "".join(map(stream.push, ids)) + stream.finish()

    def token_bytes(self, token: int) -> bytes:
        return b" %d" % token

    def stream(self, skip_special: bool = True, continues: bool = False, keep: tuple[str, ...] = ()) -> Detokenizer:
        return ByteDetokenizer(self._table)
