"""A model's tokenizer: encode, decode, and what its special tokens are. Knows no chat message and no HTTP.

TokenizerError is raised for files that cannot be read or understood; its message names the file.
"""

from __future__ import annotations

import copy
import functools
import re
import threading
from array import array
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
import tokenizers

from tsd.api.text.detokenizer import ByteDetokenizer, ByteTable, Detokenizer, WindowDetokenizer
from tsd.api.text.pieces import PIECE, Cutter
from tsd.api.text.stretches import StretchCache, is_separable
from tsd.api.text.tokenizer_parts import DecoderPart, TokenizerPart

CACHED_FROM = 2048
"""Characters from which a chat prompt is encoded by remembered stretches."""


class TextTooLong(ValueError):
    """The text has `tokens` tokens, over the limit that was given."""

    def __init__(self, tokens: int) -> None:
        super().__init__(f"{tokens} tokens")
        self.tokens = tokens


def check_tokens(count: int, limit: int | None) -> None:
    if limit is not None and count > limit:
        raise TextTooLong(count)


PIECES_FROM = 2 * PIECE
PACKED_AT_A_TIME = 8192


def pack(ids: list[int]) -> array[int]:
    """The ids as int32, a part at a time: a thread that packs a million of them in one call holds the interpreter, and
    with it every stream, for as long. Raises OverflowError or TypeError for what is no 32-bit integer."""
    packed: array[int] = array("i")
    for start in range(0, len(ids), PACKED_AT_A_TIME):
        packed.fromlist(ids[start : start + PACKED_AT_A_TIME])
    return packed


class TokenizerError(ValueError):
    """The tokenizer files are missing, broken, or of a kind that is not supported."""


@dataclass(frozen=True)
class Vocabulary:
    size: int
    specials: dict[str, int]
    """Control tokens by their text."""
    special_ids: frozenset[int]
    eos_ids: tuple[int, ...] = ()
    pattern: re.Pattern[str] | None = field(default=None)
    """Finds any special token's text; longest first."""

    @staticmethod
    def pattern_of(specials: dict[str, int]) -> re.Pattern[str] | None:
        texts = sorted((text for text in specials if text), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, texts))) if texts else None


class Tokenizer(Protocol):
    vocabulary: Vocabulary
    chat_template: str | None
    bos_token: str
    eos_token: str
    max_characters_per_token: int
    """No token stands for more characters: a lower bound on a text's length in tokens, before encoding it."""

    def encode(self, text: str, add_special: bool = True, limit: int | None = None) -> array[int]:
        """Raises TextTooLong over `limit` tokens, before their ids are boxed (which holds the interpreter)."""

    def encode_plain(self, text: str, limit: int | None = None) -> array[int]:
        """Special tokens' texts are ordinary text here."""

    def decode(self, ids: list[int] | array[int], skip_special: bool = True) -> str: ...
    def token_bytes(self, token: int) -> bytes: ...
    def stream(self, skip_special: bool = True, continues: bool = False, keep: tuple[str, ...] = ()) -> Detokenizer:
        """`keep`: special tokens that stay in the text all the same."""


def _unmap() -> dict[str, int]:
    """GPT-2's printable stand-ins for bytes: printable Latin-1 stands for itself, the others are moved to U+0100.."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    table.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return table


_BYTE_OF = _unmap()
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_level_piece(token: str) -> bytes:
    try:
        return bytes([_BYTE_OF[character] for character in token])
    except KeyError:
        return token.encode()


def sentencepiece_piece(token: str, mark: str) -> bytes:
    match = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(match[1], 16)]) if match else token.replace(mark, " ").encode()


class FastTokenizer:
    """Over a `tokenizers.Tokenizer`; `source` is its JSON when known (saves writing it out to see the decoder)."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        source: bytes | None = None,
        chat_template: str | None = None,
        bos_token: str = "",
        eos_token: str = "",
        eos_ids: tuple[int, ...] = (),
    ) -> None:
        self._backend = backend
        self._plain: tokenizers.Tokenizer | None = None
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, ...], ByteTable] = {}
        self.chat_template = chat_template
        self.bos_token = bos_token
        self.eos_token = eos_token
        vocab = backend.get_vocab(with_added_tokens=True)
        added = backend.get_added_tokens_decoder()
        specials = {token.content: token_id for token_id, token in added.items() if token.special}
        size = max(vocab.values(), default=-1) + 1
        self.max_characters_per_token = max(map(len, vocab), default=1)
        if eos_token in vocab and vocab[eos_token] not in eos_ids:
            eos_ids = (*eos_ids, vocab[eos_token])
        special_ids = frozenset(specials.values())
        self.vocabulary = Vocabulary(size, specials, special_ids, eos_ids, Vocabulary.pattern_of(specials))
        text = source if source is not None else backend.to_str().encode()
        parts = msgspec.json.decode(text, type=TokenizerPart)
        self._stretches: StretchCache | None = None
        self._cutter: Cutter | None = None
        if is_separable(parts, added):
            self._stretches = StretchCache(self._encode_pieces)
            self._cutter = Cutter(backend)
        self._keep, self._skip = self._tables(
            parts.decoder, vocab, {i: t.content for i, t in added.items()}, special_ids
        )

    def _tables(
        self,
        decoder: DecoderPart | None,
        vocab: dict[str, int],
        added: dict[int, str],
        special_ids: frozenset[int],
    ) -> tuple[ByteTable | None, ByteTable | None]:
        parts = [] if decoder is None else (decoder.decoders or [decoder])
        kinds = {part.type for part in parts}
        strip = any(part.type == "Strip" and part.content == " " and part.start == 1 for part in parts)
        metaspace = next((part for part in parts if part.type == "Metaspace"), None)
        byte_level = "ByteLevel" in kinds
        if not (byte_level or kinds <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}) or not kinds:
            return None, None
        mark = metaspace.replacement if metaspace else "▁"
        if metaspace and metaspace.prepend_scheme != "never":
            strip = True
        pieces = [b""] * self.vocabulary.size
        for token, token_id in vocab.items():
            if byte_level:
                pieces[token_id] = byte_level_piece(token)
            else:
                pieces[token_id] = sentencepiece_piece(token, mark)
        for token_id, content in added.items():
            pieces[token_id] = content.encode()
        keep = ByteTable(pieces, strip)
        for token_id in special_ids:
            pieces[token_id] = b""
        return keep, ByteTable(pieces, strip)

    def encode(self, text: str, add_special: bool = True, limit: int | None = None) -> array[int]:
        if not add_special and self._stretches is not None and len(text) > CACHED_FROM:
            return self._encode_stretches(text, limit)
        if self._cutter is not None and len(text) > PIECES_FROM:
            before, after = self._around if add_special else (array("i"), array("i"))
            room = None if limit is None else limit - len(before) - len(after)
            try:
                return before + self._encode_pieces(text, room) + after
            except TextTooLong as error:
                raise TextTooLong(error.tokens + len(before) + len(after)) from None
        # The batch call releases the interpreter lock while it works; the single one does not.
        encoding = self._backend.encode_batch_fast([text], add_special_tokens=add_special)[0]
        check_tokens(len(encoding), limit)
        return pack(encoding.ids)

    def _encode_pieces(self, text: str, limit: int | None = None) -> array[int]:
        """Without special tokens around it, a piece at a time: no call makes, or hands over, more than one piece's
        tokens, however long the text."""
        assert self._cutter is not None
        ids: array[int] = array("i")
        count = 0
        for piece in self._cutter.pieces(text):
            encoding = self._backend.encode_batch_fast([piece], add_special_tokens=False)[0]
            count += len(encoding)
            if limit is None or count <= limit:  # else only counted, to say how many there are
                ids += pack(encoding.ids)
        check_tokens(count, limit)
        return ids

    @functools.cached_property
    def _around(self) -> tuple[array[int], array[int]]:
        """The special tokens that the tokenizer puts before and after a text."""
        bare = self._backend.encode("a", add_special_tokens=False).ids
        whole = self._backend.encode("a", add_special_tokens=True).ids
        start = next(i for i in range(len(whole)) if whole[i : i + len(bare)] == bare)
        return array("i", whole[:start]), array("i", whole[start + len(bare) :])

    def _encode_stretches(self, text: str, limit: int | None) -> array[int]:
        """As encode, remembering what stands between special tokens."""
        assert self._stretches is not None
        ids: array[int] = array("i")
        start = 0
        pattern, specials = self.vocabulary.pattern, self.vocabulary.specials
        for match in pattern.finditer(text) if pattern is not None else ():
            if match.start() > start:
                ids.extend(self._stretches.encode(text[start : match.start()]))
            ids.append(specials[match[0]])
            start = match.end()
            check_tokens(len(ids), limit)
        if start < len(text):
            ids.extend(self._stretches.encode(text[start:]))
        check_tokens(len(ids), limit)
        return ids

    def encode_plain(self, text: str, limit: int | None = None) -> array[int]:
        with self._lock:
            if self._plain is None:
                self._plain = copy.deepcopy(self._backend)
                self._plain.encode_special_tokens = True
        encoding = self._plain.encode_batch_fast([text], add_special_tokens=False)[0]
        check_tokens(len(encoding), limit)
        return pack(encoding.ids)

    def decode(self, ids: list[int] | array[int], skip_special: bool = True) -> str:
        stream = self.stream(skip_special)
        return "".join(map(stream.push, ids)) + stream.finish()

    def token_bytes(self, token: int) -> bytes:
        if self._keep is not None:
            return self._keep.pieces[token] if 0 <= token < len(self._keep.pieces) else b""
        return (self._backend.id_to_token(token) or "").encode()

    def stream(self, skip_special: bool = True, continues: bool = False, keep: tuple[str, ...] = ()) -> Detokenizer:
        specials = self.vocabulary.specials
        kept = tuple(text for text in keep if text in specials) if skip_special else ()
        table = self._skip if skip_special else self._keep
        if table is None or self._keep is None:
            return WindowDetokenizer(lambda ids: self._decode_window(ids, skip_special and not kept))
        if kept:
            table = self._kept.get(kept)
            if table is None:
                wanted = {specials[text] for text in kept}
                dropped = self.vocabulary.special_ids - wanted
                pieces = [b"" if token in dropped else piece for token, piece in enumerate(self._keep.pieces)]
                table = self._kept[kept] = ByteTable(pieces, self._keep.strip_first_space)
        return ByteDetokenizer(table, continues)

    def _decode_window(self, ids: list[int], skip_special: bool) -> str:
        text: Any = self._backend.decode(ids, skip_special_tokens=skip_special)
        return str(text)
