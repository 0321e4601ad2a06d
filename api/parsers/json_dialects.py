"""Dialects whose calls are JSON: hermes (and Qwen), llama3_json, json, mistral, deepseek v3 and v3.1, kimi_k2."""

from __future__ import annotations

from tsd.api.parsers.feed import Feed, Reading, accept, peek, rest, skip_space, text_until, until
from tsd.api.parsers.json_call import call_object, json_value
from tsd.api.parsers.output import Out, give_back


def hermes(feed: Feed, out: Out) -> Reading[None]:
    """`<tool_call>{"name": …, "arguments": …}</tool_call>`, any number, text anywhere around."""
    while (yield from until(feed, ("<tool_call>",), out.content)) is not None:
        if (yield from call_object(feed, out, "<tool_call>")):
            yield from skip_space(feed)
            yield from accept(feed, "</tool_call>")
        if out.complete:
            return


def json_calls(feed: Feed, out: Out) -> Reading[None]:
    """The whole answer is one call object, several with `;` or white space between, or a list of them.

    Llama 3 may put `<|python_tag|>` first, and writes `parameters` for arguments.
    """
    lead: list[str] = []
    feed.record = lead
    yield from skip_space(feed)
    yield from accept(feed, "<|python_tag|>")
    yield from skip_space(feed)
    is_list = (yield from accept(feed, "[")) is not None
    yield from skip_space(feed)
    feed.record = None
    opening = "".join(lead)
    while (yield from peek(feed)) == "{":
        if not (yield from call_object(feed, out, opening)):
            yield from rest(feed, out.content)
            return
        opening = ""
        if out.complete:
            return
        yield from skip_space(feed)
        yield from accept(feed, ",", ";")
        yield from skip_space(feed)
    if is_list and not opening:
        yield from accept(feed, "]")
    out.content(opening)
    yield from rest(feed, out.content)


def mistral(feed: Feed, out: Out) -> Reading[None]:
    """`[TOOL_CALLS][{…}, …]`, or `[TOOL_CALLS]name{…}` (also with `[ARGS]`, `[CALL_ID]id`), repeated."""
    marker = "[TOOL_CALLS]"
    while (yield from until(feed, (marker,), out.content)) is not None:
        yield from skip_space(feed)
        first = yield from peek(feed)
        if first in ("[", "{"):
            yield from _mistral_list(feed, out, marker)
        else:
            yield from _mistral_named(feed, out, marker)
        if out.complete:
            return


def _mistral_list(feed: Feed, out: Out, marker: str) -> Reading[None]:
    opening = marker + ((yield from accept(feed, "[")) or "")
    yield from skip_space(feed)
    while (yield from peek(feed)) == "{":
        if not (yield from call_object(feed, out, opening)) or out.complete:
            return
        opening = ""
        yield from skip_space(feed)
        yield from accept(feed, ",")
        yield from skip_space(feed)
    yield from accept(feed, "]")


def _mistral_named(feed: Feed, out: Out, marker: str) -> Reading[None]:
    feed.record = []
    name, at = yield from text_until(feed, ("[CALL_ID]", "[ARGS]", "{"))
    call_id = None
    if at == "[CALL_ID]":
        call_id, at = yield from text_until(feed, ("[ARGS]", "{"))
    if at is None or not out.tools.knows(name.strip()):
        give_back(feed, out, marker)
        return
    feed.record = None
    out.start(name.strip(), call_id)
    if at == "{":
        feed.unread(1)
    yield from skip_space(feed)
    yield from json_value(feed, out.arguments)
    out.end()


def _wrapped(
    feed: Feed, out: Out, sections: tuple[str, str], call: tuple[str, str], separators: tuple[str, ...], fence: bool
) -> Reading[None]:
    """Calls between section markers, each `begin name separator arguments end`."""
    begin, end = call
    while True:
        marker = yield from until(feed, (*sections, begin), out.content)
        if marker is None:
            return
        if marker != begin:
            continue
        feed.record = []
        name, at = yield from text_until(feed, (*separators, end))
        if at in separators and fence:
            name, at = yield from text_until(feed, ("```json", end))
        called, call_id = name.strip(), None
        if called.startswith("functions."):
            call_id, called = called, called.removeprefix("functions.").rsplit(":", 1)[0]
        if at is None or at == end or not out.tools.knows(called):
            give_back(feed, out, begin)
            continue
        feed.record = None
        out.start(called, call_id)
        yield from skip_space(feed)
        yield from json_value(feed, out.arguments)
        out.end()
        if out.complete:
            return
        yield from skip_space(feed)
        if fence:
            yield from accept(feed, "```")
            yield from skip_space(feed)
        yield from accept(feed, end)
        yield from skip_space(feed)


_DEEPSEEK_SECTIONS = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
_DEEPSEEK_CALL = ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")
_KIMI_SECTIONS = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")
_KIMI_CALL = ("<|tool_call_begin|>", "<|tool_call_end|>")


def deepseek_v3(feed: Feed, out: Out) -> Reading[None]:
    """`…call▁begin｜>function<｜tool▁sep｜>name` and the arguments in a fenced block."""
    yield from _wrapped(feed, out, _DEEPSEEK_SECTIONS, _DEEPSEEK_CALL, ("<｜tool▁sep｜>",), True)


def deepseek_v31(feed: Feed, out: Out) -> Reading[None]:
    """`…call▁begin｜>name<｜tool▁sep｜>{…}`."""
    yield from _wrapped(feed, out, _DEEPSEEK_SECTIONS, _DEEPSEEK_CALL, ("<｜tool▁sep｜>",), False)


def kimi_k2(feed: Feed, out: Out) -> Reading[None]:
    """`<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{…}`: the id is the model's own."""
    yield from _wrapped(feed, out, _KIMI_SECTIONS, _KIMI_CALL, ("<|tool_call_argument_begin|>",), False)
