"""Tool calls written as JSON: `{"name": …, "arguments": {…}}`, streamed as they are read.

The arguments' raw text is passed on as it stands, once the name is known; before that it waits.
"""

from __future__ import annotations

import msgspec

from tsd.api.parsers.feed import Feed, Reading, Sink, accept, peek, skip_space
from tsd.api.parsers.output import Out, give_back

_PLAIN = frozenset("0123456789+-.eEtrufalsn, \t\r\n:")
ARGUMENT_KEYS = ("arguments", "parameters")


def json_string(feed: Feed) -> Reading[str | None]:
    """Reads a string literal with its quotes; None where there is none, or where it never ends."""
    if (yield from peek(feed)) != '"':
        return None
    parts: list[str] = []
    if not (yield from json_value(feed, parts.append)):
        return None
    try:
        return msgspec.json.decode("".join(parts), type=str)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None


def json_value(feed: Feed, sink: Sink) -> Reading[bool]:
    """Passes one JSON value on, judged by its brackets and strings. False when the text ended or broke inside it."""
    depth = 0
    in_string = escaped = begun = False
    while True:
        text, start = feed.text, feed.at
        for position in range(start, len(text)):
            character = text[position]
            if in_string:
                if escaped:
                    escaped = False
                elif character == "\\":
                    escaped = True
                elif character == '"':
                    in_string = False
                    if depth == 0:
                        sink(feed.take(position + 1 - start))
                        return True
            elif character == '"':
                if begun and depth == 0:
                    sink(feed.take(position - start))
                    return False
                in_string = begun = True
            elif character in "{[":
                if begun and depth == 0:
                    sink(feed.take(position - start))
                    return False
                depth += 1
                begun = True
            elif character in "}]":
                depth -= 1
                if depth < 0:  # the end of what holds this value: a bare number or word is over
                    sink(feed.take(position - start))
                    return begun
                if depth == 0:
                    sink(feed.take(position + 1 - start))
                    return True
            elif depth == 0 and begun and character in ", \t\r\n":
                sink(feed.take(position - start))
                return True
            elif character not in _PLAIN:
                sink(feed.take(position - start))
                return False
            else:
                begun = True
        if feed.left:
            sink(feed.take_all())
        if feed.closed:
            return begun and depth == 0 and not in_string
        yield


def call_object(feed: Feed, out: Out, opening: str = "") -> Reading[bool]:
    """One call object. What turns out to be no call before its name and arguments are known comes back as text
    (after `opening`, the marker that led here); returns whether it was a call."""
    feed.record = []
    name: str | None = None
    waiting: list[str] = []
    streamed = closed = False
    yield from skip_space(feed)
    good = (yield from accept(feed, "{")) is not None
    while good:
        yield from skip_space(feed)
        if (yield from accept(feed, "}")):
            closed = True
            break
        key = yield from json_string(feed)
        yield from skip_space(feed)
        if key is None or not (yield from accept(feed, ":")):
            good = False
            break
        yield from skip_space(feed)
        if key == "name" and name is None:
            name = yield from json_string(feed)
            if name is None or not out.tools.knows(name):
                name, good = None, False
                break
        elif key in ARGUMENT_KEYS and not streamed and not waiting:
            if name is not None:
                feed.record = None
                out.start(name)
                streamed = True
            good = yield from _arguments(feed, out.arguments if streamed else waiting.append)
        else:
            good = yield from json_value(feed, _nowhere)
        yield from skip_space(feed)
        if not good or not (yield from accept(feed, ",")):
            closed = (yield from accept(feed, "}")) is not None
            break
    if name is None or not (streamed or waiting or closed):
        give_back(feed, out, opening)
        return False
    feed.record = None
    if not streamed:
        out.start(name)
        out.arguments("".join(waiting) or "{}")
    out.end()
    return True


def _arguments(feed: Feed, sink: Sink) -> Reading[bool]:
    """Arguments may be an object, or a string that holds one."""
    if (yield from peek(feed)) == '"':
        text = yield from json_string(feed)
        sink(text if text is not None else "")
        return text is not None
    return (yield from json_value(feed, sink))


def _nowhere(text: str) -> None:
    return None
