"""Dialects that write parameters in tags: qwen3_coder, glm45 and glm47, minimax_m2, deepseek v3.2.

Arguments come out as a JSON object, a member at a time; its types follow the tool's schema.
"""

from __future__ import annotations

import re

from tsd.api.parsers.feed import Feed, Reading, accept, skip_space, text_until, until
from tsd.api.parsers.output import Out, give_back
from tsd.api.parsers.values import quote, to_json, types_of

_ATTRIBUTE = re.compile(r'(\w+)\s*=\s*"([^"]*)"')


class _Members:
    """Writes the members of one call's argument object."""

    def __init__(self, out: Out, name: str, call_id: str | None = None) -> None:
        self._out = out
        self._name = name
        self._first = True
        out.start(name, call_id)
        out.arguments("{")

    def add(self, key: str, text: str, as_string: bool | None = None) -> None:
        schema = self._out.tools.parameter(self._name, key)
        if as_string and (not (types := types_of(schema)) or "string" in types):
            schema = {"type": "string"}
        self._write(key, to_json(text, schema))

    def cut(self, key: str, text: str) -> None:
        """The text ended inside this value: its beginning is not lost, and the object stays open."""
        self._write(key, quote(text)[:-1])

    def end(self) -> None:
        self._out.arguments("}")
        self._out.end()

    def _write(self, key: str, value: str) -> None:
        self._out.arguments(("" if self._first else ", ") + quote(key) + ": " + value)
        self._first = False


def qwen3_coder(feed: Feed, out: Out) -> Reading[None]:
    """`<tool_call><function=name><parameter=key>value</parameter>…</function></tool_call>`."""
    opening = "<tool_call>"
    while True:
        marker = yield from until(feed, (opening, "<function="), out.content)
        if marker is None:
            return
        lead = marker
        if marker == opening:
            feed.record = []
            yield from skip_space(feed)
            if (yield from accept(feed, "<function=")) is None:
                give_back(feed, out, opening)
                continue
            lead += "".join(feed.record or ())
        feed.record = []
        name, end = yield from text_until(feed, (">",))
        if end is None or not out.tools.knows(name.strip()):
            give_back(feed, out, lead)
            continue
        feed.record = None
        members = _Members(out, name.strip())
        done = yield from _parameters(feed, members, "<parameter=", "</parameter>", ("</function>", opening))
        if done is None:
            return
        members.end()
        if out.complete:
            return
        yield from skip_space(feed)
        yield from accept(feed, "</tool_call>")


def _parameters(feed: Feed, members: _Members, begin: str, close: str, ends: tuple[str, ...]) -> Reading[str | None]:
    """Parameters until one of `ends`; None when the text ended."""
    while True:
        _, marker = yield from text_until(feed, (begin, *ends))
        if marker != begin:
            return marker
        key, at = yield from text_until(feed, (">",))
        if at is None:
            return None
        key, as_string = _key(key)
        value, at = yield from text_until(feed, (close,))
        value = value.removeprefix("\n")
        if at is None:
            members.cut(key, value)
            return None
        members.add(key, value.removesuffix("\n"), as_string)


def _key(text: str) -> tuple[str, bool | None]:
    """`key`, or ` name="key" string="true"`."""
    attributes = dict(_ATTRIBUTE.findall(text))
    if "name" not in attributes:
        return text.strip().strip('"'), None
    return attributes["name"], {"true": True, "false": False}.get(attributes.get("string", ""))


def _invoke(feed: Feed, out: Out, sections: tuple[str, str], tag: str) -> Reading[None]:
    """`<invoke name="f"><parameter name="k">v</parameter></invoke>` between sections; `tag` goes before names."""
    begin, end = f"<{tag}invoke", f"</{tag}invoke>"
    while True:
        marker = yield from until(feed, (*sections, begin), out.content)
        if marker is None:
            return
        if marker != begin:
            continue
        feed.record = []
        head, at = yield from text_until(feed, (">",))
        name = dict(_ATTRIBUTE.findall(head)).get("name", "")
        if at is None or not out.tools.knows(name):
            give_back(feed, out, begin)
            continue
        feed.record = None
        members = _Members(out, name)
        if (yield from _parameters(feed, members, f"<{tag}parameter", f"</{tag}parameter>", (end,))) is None:
            return
        members.end()
        if out.complete:
            return
        yield from skip_space(feed)


def minimax_m2(feed: Feed, out: Out) -> Reading[None]:
    """`<minimax:tool_call><invoke name=…>…</invoke></minimax:tool_call>`."""
    yield from _invoke(feed, out, ("<minimax:tool_call>", "</minimax:tool_call>"), "")


def deepseek_v32(feed: Feed, out: Out) -> Reading[None]:
    """`<｜DSML｜function_calls><｜DSML｜invoke name=…>…`."""
    yield from _invoke(feed, out, ("<｜DSML｜function_calls>", "</｜DSML｜function_calls>"), "｜DSML｜")


def glm45(feed: Feed, out: Out) -> Reading[None]:
    """`<tool_call>name <arg_key>k</arg_key><arg_value>v</arg_value>…</tool_call>` (glm47 drops the line breaks)."""
    opening, end = "<tool_call>", "</tool_call>"
    while (yield from until(feed, (opening,), out.content)) is not None:
        feed.record = []
        name, at = yield from text_until(feed, ("<arg_key>", end))
        if at is None or not out.tools.knows(name.strip()):
            give_back(feed, out, opening)
            continue
        feed.record = None
        members = _Members(out, name.strip())
        while at == "<arg_key>":
            key, at = yield from text_until(feed, ("</arg_key>",))
            _, at = yield from text_until(feed, ("<arg_value>", end))
            if at != "<arg_value>":
                break
            value, at = yield from text_until(feed, ("</arg_value>",))
            if at is None:
                members.cut(key.strip(), value)
                return
            members.add(key.strip(), value)
            _, at = yield from text_until(feed, ("<arg_key>", end))
        if at is None:
            return
        members.end()
        if out.complete:
            return
        yield from skip_space(feed)
