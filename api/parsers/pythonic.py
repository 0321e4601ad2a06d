"""The pythonic dialect: the answer is a list of calls, `[f(a=1, b="x"), g()]`. Literals are parsed, never evaluated.

The list is read whole (it is one expression) before its calls come out; anything else comes back as text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from tsd.api.parsers.feed import Feed, Reading, accept, peek, rest, skip_space
from tsd.api.parsers.output import Out

MAX_DEPTH = 32
_NAME = re.compile(r"[A-Za-z_][\w.]*")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)")
_STRING = re.compile(r"""(?s)'[^'\\]*+(?:\\.[^'\\]*+)*+'|"[^"\\]*+(?:\\.[^"\\]*+)*+\"""")
_ESCAPE = re.compile(r"(?s)\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)")
_PLAIN_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "0": "\0", "\n": ""}
_WORDS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}


class Call(NamedTuple):
    name: str
    arguments: dict[str, Any]


class _Broken(Exception):
    """Not a list of calls."""


class _Literals:
    """Recursive descent over one text; each character is read once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def calls(self) -> list[Call]:
        self._expect("[")
        found: list[Call] = []
        while not self._accept("]"):
            found.append(self._call())
            if not self._accept(","):
                self._expect("]")
                break
        self._space()
        if self._at != len(self._text) or not found:
            raise _Broken
        return found

    def _call(self) -> Call:
        name = self._match(_NAME)
        self._expect("(")
        arguments: dict[str, Any] = {}
        while not self._accept(")"):
            key = self._match(_NAME)
            self._expect("=")
            arguments[key] = self._value(0)
            if not self._accept(","):
                self._expect(")")
                break
        return Call(name, arguments)

    def _value(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise _Broken
        for opening, close in (("[", "]"), ("(", ")")):
            if self._accept(opening):
                items = []
                while not self._accept(close):
                    items.append(self._value(depth + 1))
                    if not self._accept(","):
                        self._expect(close)
                        break
                return items
        if self._accept("{"):
            return self._dict(depth)
        self._space()
        first = self._text[self._at : self._at + 1]
        if first in ("'", '"') and first:
            return "".join(self._string() for _ in self._strings())
        if first.isalpha():
            word = self._match(_NAME)
            if word in _WORDS:
                return _WORDS[word]
            raise _Broken
        number = self._match(_NUMBER)
        return float(number) if any(mark in number for mark in ".eE") else int(number[:400])

    def _dict(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not self._accept("}"):
            key = self._value(depth + 1)
            self._expect(":")
            if isinstance(key, (list, dict)):
                raise _Broken
            found[str(key)] = self._value(depth + 1)
            if not self._accept(","):
                self._expect("}")
                break
        return found

    def _strings(self) -> Iterator[None]:
        """Adjacent literals are one string."""
        while self._text[self._at : self._at + 1] in ("'", '"') and self._at < len(self._text):
            yield
            self._space()

    def _string(self) -> str:
        return _ESCAPE.sub(_unescape, self._match(_STRING)[1:-1])

    def _space(self) -> None:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1

    def _accept(self, token: str) -> bool:
        self._space()
        if self._text.startswith(token, self._at):
            self._at += len(token)
            return True
        return False

    def _expect(self, token: str) -> None:
        if not self._accept(token):
            raise _Broken

    def _match(self, pattern: re.Pattern[str]) -> str:
        self._space()
        match = pattern.match(self._text, self._at)
        if match is None:
            raise _Broken
        self._at = match.end()
        return match[0]


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    if code[0] in "xuU" and len(code) > 1:
        value = int(code[1:], 16)
        return chr(value) if value < 0x110000 and not 0xD800 <= value < 0xE000 else "�"
    return _PLAIN_ESCAPES.get(code, code if code in "'\"\\" else "\\" + code)


def parse_calls(text: str) -> list[Call] | None:
    try:
        return _Literals(text).calls()
    except (_Broken, ValueError):
        return None


def pythonic(feed: Feed, out: Out) -> Reading[None]:
    lead: list[str] = []
    feed.record = lead
    yield from skip_space(feed)
    yield from accept(feed, "<|python_start|>")
    yield from skip_space(feed)
    feed.record = None
    if (yield from peek(feed)) != "[":
        out.content("".join(lead))
        yield from rest(feed, out.content)
        return
    body: list[str] = []
    yield from _list(feed, body)
    calls = parse_calls("".join(body))
    if calls is None or not all(out.tools.knows(call.name) for call in calls):
        out.content("".join(lead) + "".join(body))
        yield from rest(feed, out.content)
        return
    for call in calls:
        out.start(call.name)
        out.arguments(json.dumps(call.arguments, ensure_ascii=False))
        out.end()
        if out.complete:
            return
    yield from skip_space(feed)
    yield from accept(feed, "<|python_end|>")
    yield from rest(feed, out.content)


def _list(feed: Feed, body: list[str]) -> Reading[None]:
    """Reads from `[` to its `]`, or to the end of the text."""
    depth, quote, escaped = 0, "", False
    while True:
        text, start = feed.text, feed.at
        for position in range(start, len(text)):
            character = text[position]
            if quote:
                if escaped:
                    escaped = False
                elif character == "\\":
                    escaped = True
                elif character == quote:
                    quote = ""
            elif character in "'\"":
                quote = character
            elif character in "[({":
                depth += 1
            elif character in "])}":
                depth -= 1
                if depth == 0:
                    body.append(feed.take(position + 1 - start))
                    return
        body.append(feed.take_all())
        if feed.closed:
            return
        yield
